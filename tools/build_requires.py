"""Print the build requirements of pyproject.toml, one per line, for a build without isolation."""

from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip brings a copy of the same parser
    from pip._vendor import tomli as tomllib

pyproject = Path(__file__).parents[1] / "pyproject.toml"
print(*tomllib.loads(pyproject.read_text(encoding="utf-8"))["build-system"]["requires"], sep="\n")
