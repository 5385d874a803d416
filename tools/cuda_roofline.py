"""Writes docs/cuda_roofline.md from cuda/resources.csv: occupancy, and upper bounds from counted operations.

cuda_roofline.py            writes the page
cuda_roofline.py --check    fails if the page does not agree with the table
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import cuda_resources

PAGE = Path(__file__).parent.parent / "docs" / "cuda_roofline.md"


@dataclass(frozen=True)
class Device:
    """Rates per multiprocessor and clock, from the vendor's data sheets."""

    name: str
    architecture: str
    multiprocessors: int
    clock: float  # Hz, boost
    fma: dict[int, int]  # bytes of the type -> lanes
    exp: int
    shared_words: int  # of 4 bytes
    shared_bytes: int
    l2: float  # bytes
    memory: float  # bytes per second
    registers: int = 65536
    max_threads: int = 2048
    max_blocks: int = 32


DEVICES = (
    Device(
        "A100 SXM 40 GB", "sm_80", 108, 1.41e9, {4: 64, 8: 32}, 16, 32, 164 << 10, 40e6, 1.555e12
    ),
    Device("H100 SXM", "sm_90", 132, 1.98e9, {4: 128, 8: 64}, 16, 32, 228 << 10, 50e6, 3.35e12),
)


def blocks_per_multiprocessor(device: Device, threads: int, registers: int, shared: int) -> int:
    """How many blocks fit. Warps get registers in units of 256; each block needs 1 kB more shared memory."""
    per_warp = (registers * 32 + 255) // 256 * 256
    limits = [device.max_threads // threads, device.max_blocks]
    limits.append(device.registers // (per_warp * (threads // 32)))
    limits.append(device.shared_bytes // (shared + 1024))
    return min(limits)


@dataclass(frozen=True)
class Work:
    """The cost of one entry of the score matrix. The tile decides the traffic of shared memory."""

    label: str
    kernel: str  # how its name in the table begins
    depth: int  # features of a dot product
    values: int = 0
    stored: bool = False  # weights written and read once (the sweep)

    def counts(self, name: str, size: int) -> dict[str, float]:
        tile = re.search(r"Tile<(\d+), (\d+), (\d+), (\d+), (\d+)>", name)
        if tile is None:
            raise ValueError(f"{name}: no tile in the name")
        rows, cols, _, tx, ty = (int(n) for n in tile.groups())
        tm, tn = rows // ty, cols // tx
        words = size // 4
        wide = self.kernel.startswith("reduce_wide")
        chunk = int(name.split(">, ")[1].split(",")[0]) if wide else 0
        chunks = -(-self.values // chunk) if wide else 1
        cv = chunk // tx if wide else 1
        shared = chunks * self.depth * (1 / tm + 1 / tn)
        if wide:  # weights and values, and the weights written once
            shared += self.values * (1 / tm + 1 / cv) + chunks
        global_bytes = chunks * self.depth * size * (1 / rows + 1 / cols)
        return {
            "fma": chunks * self.depth + self.values + 8,  # 8: shift, range reduction and sum
            "exp": chunks,
            "shared": shared * words,
            "l2": global_bytes + (2 * size if self.stored else 0),
        }


def bound(device: Device, counts: dict[str, float], size: int) -> tuple[float, str]:
    """Pairs per second, and what limits them."""
    exp_lanes = (
        device.exp if size == 4 else device.fma[8] / 20
    )  # there is no hardware exp in double; it takes some 20 FMAs
    clocks = {
        "FMA": counts["fma"] / device.fma[size],
        "exp": counts["exp"] / exp_lanes,
        "shared memory": counts["shared"] / device.shared_words,
    }
    worst = max(clocks, key=lambda k: clocks[k])
    return device.multiprocessors * device.clock / clocks[worst], worst


FIGURES = {"fma": 0, "exp": 0, "shared": 1, "l2": 1}  # columns of the table, and their decimals
WORK = {
    4: (
        Work("log-sum-exp, d = 3", "reduce_narrow<float, float, {}, 0,", 3),
        Work("log-sum-exp, d = 64", "reduce_narrow<float, float, {}, 0,", 64),
        Work("apply, d = 2, 2 values (particles)", "reduce_narrow<float, float, {}, 4, true", 2, 4),
        Work("apply, d = 64, 64 values", "reduce_wide<float, float, {}, 64, true", 64, 64),
        Work(
            "apply, half inputs, d = 64, 64 values", "reduce_wide<float, Half, {}, 64, true", 64, 64
        ),
        Work("Sinkhorn sweep, d = 3", "sinkhorn_strips<float", 3, stored=True),
        Work("Sinkhorn sweep, d = 64", "sinkhorn_strips<float", 64, stored=True),
    ),
    8: (
        Work("log-sum-exp, d = 3", "reduce_narrow<double, double, {}, 0,", 3),
        Work("apply, d = 64, 64 values", "reduce_wide<double, double, {}, 32, true", 64, 64),
        Work("Sinkhorn sweep, d = 64", "sinkhorn_strips<double", 64, stored=True),
    ),
}


def find(rows: dict[cuda_resources.Key, cuda_resources.Row], architecture: str, start: str) -> str:
    pattern = re.escape(start).replace(r"\{\}", r"Tile<[^>]*>")
    names = [k for a, k in rows if a == architecture and re.match(pattern, k)]
    if len(names) != 1:
        raise ValueError(f"{architecture} {start}: {len(names)} kernels in the table")
    return names[0]


def paragraph(*sentences: str) -> list[str]:
    return [*textwrap.wrap(" ".join(sentences), 118, break_long_words=False), ""]


def resource_table(rows: dict[cuda_resources.Key, cuda_resources.Row]) -> list[str]:
    heads = " | ".join(f"{d.name}: registers, shared, warps" for d in DEVICES)
    out = [f"| kernel | threads | {heads} |", "|---|---|" + "---|" * len(DEVICES)]
    for name in sorted({k for a, k in rows if a == DEVICES[0].architecture}):
        cells = []
        for device in DEVICES:
            threads, registers, shared = rows[device.architecture, name]
            blocks = blocks_per_multiprocessor(device, threads, registers, shared)
            warps, most = blocks * threads // 32, device.max_threads // 32
            cells.append(f"{registers}, {shared / 1024:.1f} kB, {warps} of {most}")
        out.append(f"| `{name}` | {threads} | " + " | ".join(cells) + " |")
    return [*out, ""]


def bound_table(rows: dict[cuda_resources.Key, cuda_resources.Row]) -> tuple[list[str], list[str]]:
    """The table of bounds, and for each device the time of a sweep at n = 50 000, d = 64."""
    heads = " | ".join(f"{d.name}: entries/s, limit" for d in DEVICES)
    out = [f"| type | work | FMA | exp | shared words | L2 bytes | {heads} |"]
    out.append("|---|---|---|---|---|---|" + "---|" * len(DEVICES))
    times = []
    for size, works in WORK.items():
        for work in works:
            cells = []
            for device in DEVICES:
                name = find(rows, device.architecture, work.kernel)
                counts = work.counts(name, size)
                rate, limit = bound(device, counts, size)
                cells.append(f"{rate:.1e}, {limit}")
                if size == 4 and work.label == "Sinkhorn sweep, d = 64":
                    times.append(f"{2.5e9 / rate * 1e3:.1f} ms on the {device.name}")
            kind = "float" if size == 4 else "double"
            figures = [f"{counts[k]:.{places}f}" for k, places in FIGURES.items()]
            out.append("| " + " | ".join([kind, work.label, *figures, *cells]) + " |")
    return [*out, ""], times


def page() -> str:
    release, rows = cuda_resources.read_table()
    bounds, times = bound_table(rows)
    traffic = [f"{2.5e9 * 8 / d.memory * 1e3:.0f} ms on the {d.name}" for d in DEVICES]
    reads = [f"{d.memory / 4:.1e} entries/s on the {d.name}" for d in DEVICES]
    out = [
        "# Roofline of the CUDA kernels",
        "",
        *paragraph(
            "**Not yet measured on a GPU.** Written by `tools/cuda_roofline.py` from",
            "`cuda/resources.csv`",
            f"(what ptxas of nvcc {release} reports) and from counting operations. The",
            "rates are upper bounds, because latencies, barriers, index arithmetic and other",
            "traffic are not counted.",
        ),
        "## Registers, shared memory, occupancy",
        "",
        *paragraph(
            "No kernel spills a register or uses local memory, on any architecture (`make",
            "cuda` fails",
            "otherwise). Shared memory of `gather_core` is dynamic, at most 32 kB, and not",
            "in this table.",
        ),
        *resource_table(rows),
        "## Upper bounds per entry of the score matrix",
        "",
        *paragraph(
            "FMA counts score, shift, range reduction of exp, sum and product. Shared memory",
            "counts words of 4 bytes read per entry. L2 counts bytes of features staged per",
            "entry, and for the sweep the weight that is written once and read once. Scores",
            "are dot products; a squared distance from differences takes two instructions per",
            "feature in place of one. The limit is the slowest of FMA, exp and shared memory.",
            "The bytes from L2 are listed but not part of it, although for the sweep with few",
            "features they will be what limits the speed.",
        ),
        *bounds,
        *paragraph(
            "The scaling sweep reads each stored entry from memory once per iteration:",
            ", ".join(reads) + " in float.",
        ),
        "## Comparison with a published time",
        "",
        *paragraph(
            "FlashSinkhorn's README gives 10.3 ms for one alternating Sinkhorn iteration",
            "at n = 50 000, d = 64 on",
            "an A100. The bound above for our one-pass iteration at that size is",
            f"{', '.join(times)}. Its score",
            "products run on the ordinary FMA units, and 64 features per entry keep those busy.",
            "So at d = 64 these portable kernels are not expected to be faster than that time",
            "on an A100; a variant on tensor cores could be. With few features the single visit",
            "per iteration matters most, and there is no published time to compare with.",
        ),
        *paragraph(
            "The weights of a strip cost 8 bytes of traffic per entry. At n = 50 000 they",
            "do not fit the L2",
            f"cache; from memory that is at least {', '.join(traffic)}, in addition to the arithmetic.",
            "`store_weights = false` computes them a second time instead.",
        ),
    ]
    return "\n".join(out).rstrip("\n") + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if not args.check:
        PAGE.write_text(page())
        return 0
    if not PAGE.exists() or PAGE.read_text() != page():
        print(
            f"{PAGE.name} does not follow from cuda/resources.csv: make cuda-update, look, commit"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
