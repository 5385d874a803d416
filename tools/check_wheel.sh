#!/usr/bin/env bash
# check_wheel.sh WHEEL [pytest arguments]: tests the wheel as a user installs it, in a new environment and in a folder
# from which the source tree cannot be imported.
set -euo pipefail

wheel=$(realpath "$1")
shift
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/venv"
pip=("$work/venv/bin/python" -m pip --disable-pip-version-check -q install)
# The time and the space that installing takes a user who has NumPy and SciPy already; printed, not tested.
"${pip[@]}" numpy scipy
most=5000000 # bytes: a wheel with all levels stays below
size=$(stat -c %s "$wheel")
if ((size >= most)); then
    echo "$wheel: wanted less than $most bytes, got $size; see unzip -v" >&2
    exit 1
fi
start=$(date +%s%N)
"${pip[@]}" "$wheel"
took=$((($(date +%s%N) - start) / 1000000))
echo "$(basename "$wheel"): $size bytes, installed in $took ms," \
    "$(du -sb "$work"/venv/lib/python*/site-packages/qkcore | cut -f1) bytes installed"
"${pip[@]}" "$wheel[test]"

cp "$root/pyproject.toml" "$work/" # the settings of pytest
cp -r "$root/tests" "$root/docs" "$root/packaging" "$work/" # tests also need the guides, and the types of qkcore-cuda
cd "$work"
"$work/venv/bin/python" - "$work" <<'PY'
import pathlib, sys, qkcore
here = pathlib.Path(qkcore.__file__).resolve()
assert here.is_relative_to(pathlib.Path(sys.argv[1], "venv").resolve()), f"qkcore was imported from {here}"
PY
QKCORE_ALL_LEVELS=1 "$work/venv/bin/python" -m pytest "$@"
