"""Runs the benchmarks: ``python bench/run.py [all | group ...] [--quick] [--write-docs]``.

Each group is a module with ``run(options) -> Group``. Results go to bench/results/<group>.json and
to the screen. A missed target is only reported, but a wrong answer makes the run fail.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

import environment

GROUPS = (
    "limits",
    "attention",
    "lse",
    "small",
    "dense",
    "dynamics",
    "diffusion",
    "bridges",
    "low_rank",
    "gaussian",
    "isb",
    "particles",
    "measure",
    "simplex",
    "diagnostics",
    "scores",
    "isa",
    "stages",
    "native",
    "growth",
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench/run.py", description="Run the benchmarks.")
    parser.add_argument("group", nargs="*", help=f"any of {', '.join(GROUPS)}; or all")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that all works")
    parser.add_argument("--write-docs", action="store_true", help="update docs/performance.md")
    parser.add_argument(
        "--rewrite",
        action="store_true",
        help="measure nothing: write docs/performance.md from bench/results and today's explanations.yaml",
    )
    parser.add_argument("--threads", type=int, default=min(2, environment.available_cpus()))
    parser.add_argument(
        "--patience",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long the run may wait in all for other programs to leave the machine alone",
    )
    asked = parser.parse_args()
    if asked.group == ["all"]:
        asked.group = list(GROUPS)
    unknown = [name for name in asked.group if name not in GROUPS]
    if unknown:
        parser.error(f"unknown group {unknown[0]!r}: choose from {', '.join(GROUPS)}")
    if asked.threads < 1:
        parser.error(f"--threads: at least 1 is wanted, received {asked.threads}")
    return asked


def main() -> int:
    asked = parse()
    environment.limit_threads(asked.threads)
    try:
        import qkcore as qk
    except ImportError as problem:
        print(f"qkcore cannot be imported ({problem}); install it first: pip install .")
        return 1
    import report  # imported late, because they import NumPy, which reads the thread limits only once
    from harness import Options, patience

    if asked.rewrite:
        for name in asked.group or [path.stem for path in sorted(report.RESULTS.glob("*.json"))]:
            if name in GROUPS:
                if not (report.RESULTS / f"{name}.json").exists():
                    print(
                        f"{name}: nothing in bench/results to write; measure it: bench/run.py {name}"
                    )
                    return 1
                group, record = report.read_json(name)
                report.write_document([group], record)
                print(f"{name}: as measured on {record['date']}")
        return 0
    patience.left = asked.patience

    qk.set_num_threads(asked.threads)
    options = Options(threads=asked.threads, quick=asked.quick)
    record = environment.record(asked.threads)
    print(report.environment_line(record), "\n", flush=True)
    groups = []
    for name in asked.group or GROUPS:
        began, load = time.perf_counter(), environment.OtherLoad()
        group = importlib.import_module(name).run(options)
        groups.append(group)
        group.extra["load_by_others"] = busy = load.fraction()
        if busy is not None and busy > 0.1:
            group.notes.append(f"other processes used {100 * busy:.0f} % of the CPUs meanwhile")
        path = report.write_json(group, record)
        print(report.markdown(group))
        print(f"{path.name} written after {time.perf_counter() - began:.0f} s\n", flush=True)
        if (
            asked.write_docs and not asked.quick
        ):  # at once, so that it is written even if the run is stopped later
            report.write_document([group], record)
    targets = [target for group in groups for target in group.targets]
    print(f"{sum(t.met for t in targets)} of {len(targets)} targets met")
    for target in targets:
        if not target.met:
            print(f"  missed: {target.claim}: {target.measured}, wanted {target.wanted}")
    if asked.write_docs and asked.quick:
        print("--quick: docs/performance.md is left alone, small sizes are no figures to publish")
    failures = [f"{group.name}: {text}" for group in groups for text in group.failures]
    for failure in failures:
        print(f"WRONG ANSWER  {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
