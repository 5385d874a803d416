"""build_requires.py [EXTRA...]: prints the build requirements of pyproject.toml, one per line.

They are needed for a build without isolation. With extras it also prints the requirements of the package and
of these extras, for an environment in which qkcore itself is not installed.
"""

import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip brings a copy of the same parser
    from pip._vendor import tomli as tomllib

pyproject = Path(__file__).parents[1] / "pyproject.toml"
content = tomllib.loads(pyproject.read_text(encoding="utf-8"))
wanted = content["build-system"]["requires"]
if sys.argv[1:]:
    wanted += content["project"]["dependencies"]
for extra in sys.argv[1:]:
    wanted += content["project"]["optional-dependencies"][extra]
print(*wanted, sep="\n")
