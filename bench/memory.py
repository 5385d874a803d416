"""Child process of ``harness.peak_growth_mb``: prints by how many MB the resident peak grew."""

from __future__ import annotations

import importlib
import json
import resource
import sys
from pathlib import Path

import environment


def status_kb(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1])
    raise KeyError(key)


def main() -> None:
    request = json.loads(sys.argv[1])
    environment.limit_threads(request["threads"])
    from harness import Options  # imported late, because NumPy reads the thread limits at import

    module = importlib.import_module(request["module"])
    call = getattr(module, request["job"])(
        Options(threads=request["threads"]), **request["arguments"]
    )
    try:
        # On Linux, "5" resets the peak to the present value, so that the set-up is not counted.
        Path("/proc/self/clear_refs").write_text("5")
        before = status_kb("VmRSS")
        call()
        grown = (status_kb("VmHWM") - before) / 1024
    except OSError:
        # On other systems growth below the peak of the set-up is not seen.
        unit = 1 if sys.platform == "darwin" else 1024
        start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        call()
        end = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        grown = (end - start) * unit / 2**20
    print(f"{grown:.1f}")


if __name__ == "__main__":
    main()
