#!/usr/bin/env bash
# check_wheel.sh WHEEL [pytest arguments]: tests the wheel as a user gets it, in a fresh environment and a folder
# from which the source tree cannot be imported.
set -euo pipefail

wheel=$(realpath "$1")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check -q install "$wheel[test]"

cp "$root/pyproject.toml" "$work/" # the settings of pytest
cp -r "$root/tests" "$root/docs" "$work/" # the guides are tests too
cd "$work"
"$work/venv/bin/python" - "$work" <<'PY'
import pathlib, sys, qkcore
here = pathlib.Path(qkcore.__file__).resolve()
assert here.is_relative_to(pathlib.Path(sys.argv[1], "venv").resolve()), f"qkcore was imported from {here}"
PY
"$work/venv/bin/python" -m pytest "$@"
