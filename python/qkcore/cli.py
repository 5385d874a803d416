"""The command line: ``qkcore list | run NAME | report DIR | bench [GROUP ...] | info`` (EOT-17).

What a user can put right is one line on the standard error and exit status 2.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from .experiments._errors import ExperimentError, missing, unknown

try:
    import click
except ImportError:  # the core installs without it; main() says what to do
    click = None  # type: ignore[assignment]


def _program() -> Any:
    """The commands; built on demand, as click may not be there."""
    from . import experiments

    class Group(click.Group):
        def resolve_command(self, context: Any, arguments: list[str]) -> Any:
            name = arguments[0]
            if self.get_command(context, name) is None and not name.startswith("-"):
                raise unknown("command", name, sorted(self.commands))
            return super().resolve_command(context, arguments)

    @click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
    def program() -> None:
        """Experiments of the documents that qkcore implements: figures, tables, verdicts."""

    @program.command("list")
    def list_() -> None:
        """Names the experiments."""
        width = max(map(len, experiments.names()))
        for e in experiments.EXPERIMENTS.values():
            needs = f"  [pip install 'qkcore[{e.needs[0][1]}]']" if e.needs else ""
            click.echo(f"{e.name:{width}}  {e.title}\n{'':{width}}  {e.reproduces}{needs}")

    @program.command()
    @click.argument("name")
    @click.option(
        "--out", default="results", show_default=True, metavar="DIR", help="Results go to DIR/NAME."
    )
    @click.option("--config", default=None, metavar="FILE", help="Settings that differ, YAML.")
    @click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="One setting.")
    @click.option("--seed", type=int, default=None, help="Where random numbers start.")
    @click.option(
        "--quick", is_flag=True, help="A small setting, under half a minute, into DIR/NAME-quick."
    )
    @click.option(
        "--force", is_flag=True, help="Compute again, and replace results of other settings."
    )
    def run(
        name: str,
        out: str,
        config: str | None,
        sets: tuple[str, ...],
        seed: int | None,
        quick: bool,
        force: bool,
    ) -> None:
        """Runs an experiment, or goes on with one that was interrupted."""
        from .experiments import _manifest
        from .experiments._folders import Known, reading

        experiment = experiments.get(name)
        command = shlex.join(["qkcore", *sys.argv[1:]])
        done = experiments.run(
            name,
            out,
            config=config,
            overrides=sets,
            seed=seed,
            quick=quick,
            force=force,
            progress=True,
            command=command,
        )
        manifest = _manifest.read(done.folder, name)
        if done.already_there:
            click.echo(
                f"{done.folder}: finished before with these settings, nothing was computed; "
                "--force computes it again"
            )
            if changed := Known.listed(done.folder, manifest).changed():
                click.echo(f"changed since that run: {', '.join(changed)}")
        else:
            for table in experiment.tables(done.folder):
                click.echo(table.text() + "\n")
        with reading(done.folder, manifest):
            claims = experiment.claims(done.metrics)
        for claim in claims:
            click.echo(f"{claim.verdict}: {claim.statement} ({claim.where})\n    {claim.measured}")
        for sentence in done.kept:
            click.echo(f"kept: {sentence}")
        if not done.already_there:
            resumed = ", resumed" if done.resumed else ""
            click.echo(f"\n{done.wall_time:.1f} s{resumed}; files in {done.folder}")
        for figure in done.figures:
            click.echo(f"picture: {figure}")

    @program.command()
    @click.argument("folder", metavar="DIR")
    @click.option("--output", default=None, metavar="FILE", help="Default: DIR/report.html.")
    def report(folder: str, output: str | None) -> None:
        """Puts everything found in DIR into one HTML page."""
        from .experiments._report import write_report

        path = write_report(Path(folder), None if output is None else Path(output))
        click.echo(f"report: {path}")

    @program.command()
    @click.argument("groups", nargs=-1, metavar="[GROUP]...")
    @click.option("--quick", is_flag=True, help="Small sizes, to see that all works.")
    @click.option("--threads", type=int, default=None, help="Of qkcore and PyTorch.")
    @click.option("--out", default="results", show_default=True, help="Folder for bench.json.")
    def bench(groups: tuple[str, ...], quick: bool, threads: int | None, out: str) -> None:
        """Times qkcore against NumPy and the peers that are installed, and checks the answers."""
        from . import _bench

        result = _bench.run(groups, quick=quick, threads=threads, echo=click.echo)
        path = Path(out) / "bench.json"
        result.write(path)
        click.echo(f"\n{result}\n\nfile: {path}")
        if result.wrong:
            click.echo(f"{len(result.wrong)} wrong answers of qkcore", err=True)
            raise click.exceptions.Exit(1)

    @program.command()
    def info() -> None:
        """Prints what this installation is made of."""
        from . import show_config
        from .experiments._manifest import versions

        show_config()
        for package, version in versions().items():
            click.echo(f"{package:14s} {version or 'not installed'}")

    return program


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; the exit status: 0, 1 for a wrong answer in ``bench``, 2 for what the user
    can put right, 130 for Ctrl-C.

    >>> main(["run", "trefoi"])
    2
    """
    try:
        if click is None:
            raise missing("click", "the command line", "experiments")
        status = _program().main(args=arguments, prog_name="qkcore", standalone_mode=False)
    except ExperimentError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        print(
            "qkcore: interrupted; the same command goes on from the last checkpoint",
            file=sys.stderr,
        )
        return 130
    except Exception as error:
        if click is not None and isinstance(error, click.Abort):
            print(
                "qkcore: interrupted; the same command goes on from the last checkpoint",
                file=sys.stderr,
            )
            return 130
        if click is not None and isinstance(error, click.ClickException):
            return _refuse(error.format_message())
        raise
    return status if isinstance(status, int) else 0


def _refuse(message: str) -> int:
    print(f"qkcore: error: {' '.join(message.split())}", file=sys.stderr)
    return 2
