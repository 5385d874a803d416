"""oldest_requires.py [EXTRA...]: prints the oldest versions that pyproject.toml allows, one per line.

They are those of the package's and the extras' requirements: "numpy>=1.24" becomes "numpy==1.24".
"""

import re
import sys
from pathlib import Path

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip brings a copy of the same parser
    from pip._vendor import tomli as tomllib

pyproject = Path(__file__).parents[1] / "pyproject.toml"
project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
wanted = list(project["dependencies"])
for extra in sys.argv[1:]:
    wanted += project["optional-dependencies"][extra]
for requirement in wanted:
    bound = re.fullmatch(r"([\w.-]+)>=([\w.]+)", requirement)
    if bound is None:
        sys.exit(f"{pyproject}: wanted NAME>=VERSION, got {requirement}")
    print(f"{bound[1]}=={bound[2]}")
