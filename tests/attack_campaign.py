"""A campaign of random hard inputs: ``python -m tests.attack_campaign SECONDS SEED [FAMILY ...]``.

SECONDS is processor time. The program prints every error beyond its bound at once, with the family and the
seed that reproduce it. At the end (or at Ctrl-C) it prints the worst error of every function, relative to its
bound.
"""

from __future__ import annotations

import collections
import sys
import time

from . import attack_diagnostics, attack_flows, attack_forms, attack_functions, attack_maps
from .attack_tools import Family, attack

FAMILIES: tuple[Family, ...] = (
    *attack_functions.FAMILIES,
    *attack_maps.FAMILIES,
    *attack_flows.FAMILIES,
    *attack_diagnostics.FAMILIES,
    *attack_forms.FAMILIES,
)


def main(seconds: float, seed: int, only: list[str]) -> None:
    draws: collections.Counter[str] = collections.Counter()
    most: dict[str, tuple[float, int]] = {}
    families = [family for family in FAMILIES if not only or family.__name__ in only]
    try:
        while time.process_time() < seconds:
            for family in families:
                for name, share in attack(family, seed):
                    draws[name] += 1
                    if share > 1:
                        where = f"{family.__name__}, seed {seed}"
                        print(f"{name}: {share:.3g} times its bound; {where}", flush=True)
                    most[name] = max(most.get(name, (0.0, seed)), (share, seed))
            seed += 1
    except KeyboardInterrupt:
        print("interrupted")
    for name, (share, at) in sorted(most.items()):
        print(f"{name:40} {draws[name]:8} draws, at most {share:.3g} of the bound (seed {at})")
    print(f"{time.process_time():.0f} s of processor time, seeds below {seed}")


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
