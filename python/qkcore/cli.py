"""The command line: ``qkcore list | run | report | bench | info | completion`` (EOT-17).

The command line needs only the packages that the core needs; ``run`` says which further packages an
experiment wants. A mistake that the user can correct is reported in one line on the standard error, with exit
status 2.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ._completion import SHELLS, script
from .experiments._errors import ExperimentError, unknown

EXIT_STATUS = """\
exit status:
  0    success
  1    bench found a wrong answer, or an experiment failed (its traceback is shown)
  2    something that you can correct, explained in one line: a name, a setting, a folder, a missing package
  130  interrupted by Ctrl-C; the same command continues from the last checkpoint
"""


class Command(argparse.ArgumentParser):
    """A parser that reports errors in one line, and keeps a list of its arguments."""

    def __init__(self, **settings: Any) -> None:
        self.arguments: list[argparse.Action] = []
        super().__init__(
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            epilog=EXIT_STATUS,
            **settings,
        )

    def add_argument(self, *names: Any, **settings: Any) -> argparse.Action:
        self.arguments.append(super().add_argument(*names, **settings))
        return self.arguments[-1]

    def error(self, message: str) -> NoReturn:
        raise ExperimentError(f"{message} (see {self.prog} --help)")

    def read(self, words: list[str]) -> argparse.Namespace:
        """Parses the words; options may stand before or after the other arguments."""
        found, more = self.parse_known_intermixed_args(words)
        for word in more:
            if word.startswith("-"):
                raise self.unknown_option(word)
            self.error(f"unexpected argument {word!r}")
        return found

    def unknown_option(self, word: str) -> ExperimentError:
        """The message for an option that does not exist."""
        options = [name for argument in self.arguments for name in argument.option_strings]
        return unknown("option", word.split("=")[0], options)


def _program() -> tuple[Command, dict[str, Command]]:
    """The main parser, which shows the help, and a parser for each command."""
    from . import __version__

    top = Command(
        prog="qkcore",
        description="Reproduces the experiments of the papers that qkcore implements, with figures, tables "
        "and verdicts.",
    )
    top.add_argument("--version", action="version", version=f"qkcore {__version__}")
    listed = top.add_subparsers(title="commands", metavar="COMMAND", parser_class=Command)
    commands: dict[str, Command] = {}

    def command(call: Callable[[argparse.Namespace], int]) -> Command:
        name, help = call.__name__.strip("_"), str(call.__doc__)
        commands[name] = listed.add_parser(name, help=help, description=help)
        commands[name].set_defaults(call=call)
        return commands[name]

    out = {"default": "results", "metavar": "DIR"}
    command(_list)

    run = command(_run)
    run.add_argument("name", metavar="NAME", help="name of an experiment (see list), or all")
    run.add_argument("--out", **out, help="write results to DIR/NAME (default: results)")
    run.add_argument("--config", metavar="FILE", help="YAML file of settings to change")
    run.add_argument(
        "--set",
        dest="sets",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change one setting",
    )
    run.add_argument("--seed", type=int, metavar="N", help="seed of the random numbers")
    run.add_argument(
        "--quick",
        action="store_true",
        help="small settings, half a minute; writes to DIR/NAME-quick",
    )
    run.add_argument(
        "--force", action="store_true", help="compute again, and replace results of other settings"
    )

    report = command(_report)
    report.add_argument("folder", metavar="DIR", help="folder that run wrote to")
    report.add_argument("--output", metavar="FILE", help="page to write (default: DIR/report.html)")

    bench = command(_bench)
    bench.add_argument(
        "groups", nargs="*", metavar="GROUP", help="which comparisons to run (default: all)"
    )
    bench.add_argument(
        "--quick", action="store_true", help="small sizes, only to see that everything works"
    )
    bench.add_argument("--threads", type=int, metavar="N", help="threads of qkcore and PyTorch")
    bench.add_argument("--out", **out, help="folder for bench.json (default: results)")

    command(_info)
    completion = command(_completion)
    completion.add_argument("shell", metavar="SHELL", help=" or ".join(SHELLS))
    return top, commands


def _list(options: argparse.Namespace) -> int:
    """List the experiments and what they reproduce."""
    from . import experiments

    width = max(map(len, experiments.names()))
    for e in experiments.EXPERIMENTS.values():
        needs = "" if e.extra == "experiments" else f"  [pip install 'qkcore[{e.extra}]']"
        print(f"{e.name:{width}}  {e.title}\n{'':{width}}  {e.reproduces}{needs}")
    return 0


def _run(options: argparse.Namespace) -> int:
    """Run an experiment (or all), or continue one that was interrupted."""
    from . import experiments

    if options.name != "all":
        _run_one(options.name, options)
        return 0
    for name, value in (("--config", options.config), ("--set", options.sets)):
        if value:
            raise ExperimentError(
                f"{name}: applies to one experiment; run it by its name, not as 'all'"
            )
    status = 0
    for name in experiments.names():
        print(f"== {name}", flush=True)
        try:
            _run_one(name, options)
        except ExperimentError as error:
            status = max(status, _refuse(str(error)))
        except Exception:
            traceback.print_exc()
            print(f"qkcore: error: {name} failed, see above; continuing", file=sys.stderr)
            status = max(status, 1)
    return status


def _run_one(name: str, options: argparse.Namespace) -> None:
    from . import experiments
    from .experiments import _manifest
    from .experiments._folders import Known, reading

    experiment = experiments.get(name)
    done = experiments.run(
        name,
        options.out,
        config=options.config,
        overrides=options.sets,
        seed=options.seed,
        quick=options.quick,
        force=options.force,
        progress=True,
        command=options.command,
    )
    manifest = _manifest.read(done.folder, name)
    if done.already_there:
        print(
            f"{done.folder}: already finished with these settings, nothing was computed; "
            "--force computes it again"
        )
        if changed := Known.listed(done.folder, manifest).changed():
            print(f"changed since that run: {', '.join(changed)}")
    else:
        for table in experiment.tables(done.folder):
            print(table.text() + "\n")
    with reading(done.folder, manifest):
        claims = experiment.claims(done.metrics)
    for claim in claims:
        print(f"{claim.verdict}: {claim.statement} ({claim.where})\n    {claim.measured}")
    for sentence in done.kept:
        print(f"kept: {sentence}")
    if not done.already_there:
        resumed = ", resumed" if done.resumed else ""
        print(f"\n{done.wall_time:.1f} s{resumed}; files in {done.folder}")
    for figure in done.figures:
        print(f"picture: {figure}")


def _report(options: argparse.Namespace) -> int:
    """Collect all results in DIR on one HTML page."""
    from .experiments._report import write_report

    output = None if options.output is None else Path(options.output)
    print(f"report: {write_report(Path(options.folder), output)}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    """Time qkcore against NumPy and installed libraries like it, and check the answers."""
    from . import _bench

    result = _bench.run(options.groups, quick=options.quick, threads=options.threads, echo=print)
    path = Path(options.out) / "bench.json"
    result.write(path)
    print(f"\n{result}\n\nfile: {path}")
    if result.wrong:
        print(f"{len(result.wrong)} wrong answers of qkcore", file=sys.stderr)
    return 1 if result.wrong else 0


def _info(options: argparse.Namespace) -> int:
    """Print the settings and package versions of this installation."""
    from . import show_config
    from .experiments._manifest import versions

    show_config()
    for package, version in versions().items():
        print(f"{package:14s} {version or 'not installed'}")
    return 0


def _completion(options: argparse.Namespace) -> int:
    """Print a script for tab completion in bash, zsh or fish."""
    from ._bench import GROUPS
    from .experiments import names

    commands = {
        name: (command.description or "", command.arguments)
        for name, command in _program()[1].items()
    }
    words = {"NAME": [*names(), "all"], "GROUP": list(GROUPS), "SHELL": list(SHELLS)}
    print(script(options.shell, commands, words))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line and returns the exit status, which ``qkcore --help`` explains.

    >>> main(["run", "trefoi"])
    2
    """
    words = sys.argv[1:] if arguments is None else arguments
    try:
        top, commands = _program()
        if not words:
            top.print_help()
            return 0
        if words[0] not in commands:
            if not words[0].startswith("-"):
                raise unknown("command", words[0], sorted(commands))
            top.parse_known_args(words[:1])  # ends here for the help and the version
            raise top.unknown_option(words[0])
        options = commands[words[0]].read(words[1:])
        options.command = shlex.join(["qkcore", *words])
        status: int = options.call(options)
        return status
    except ExperimentError as error:
        return _refuse(str(error))
    except SystemExit as done:  # argparse has shown a help page or the version
        return int(done.code or 0)
    except KeyboardInterrupt:
        print(
            "qkcore: interrupted; the same command continues from the last checkpoint",
            file=sys.stderr,
        )
        return 130


def _refuse(message: str) -> int:
    print(f"qkcore: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
