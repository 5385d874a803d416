#!/usr/bin/env bash
# sanitize.sh address,undefined|thread PYTHON [COMMAND...]: builds the compiled modules with sanitizers into
# build/<sanitizers>/site and runs COMMAND (default: PYTHON -m pytest) there. PYTHON needs the test dependencies and
# the build requirements; the qkcore installed in it is not used. CMAKE and NINJA name the programs.
#
# CPython itself is not instrumented, so the sanitizer's library must be loaded before it (LD_PRELOAD), and libstdc++
# with it, because the sanitizer intercepts C++ exceptions and must find the functions that it replaces.
set -euo pipefail

sanitizers=$1
python=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
build=${BUILD:-$root/build}/${sanitizers//,/-}
site=$build/site

# -O1 gives vector code of tolerable speed and a build that takes minutes. Without NDEBUG Eigen and libstdc++ check their
# own indices too.
mkdir -p "$build"
"${CMAKE:-cmake}" -G Ninja -S "$root" -B "$build/cmake" -DCMAKE_MAKE_PROGRAM="${NINJA:-ninja}" -DPython_EXECUTABLE="$python" \
    -DQKCORE_ISA_LEVELS=native -DQKCORE_SANITIZE="$sanitizers" -DCMAKE_BUILD_TYPE=Sanitize \
    -DCMAKE_CXX_FLAGS_SANITIZE="-O1 -D_GLIBCXX_ASSERTIONS" > "$build.log" || { cat "$build.log"; exit 1; }
"${CMAKE:-cmake}" --build "$build/cmake"
rm -rf "$site"
mkdir -p "$site"
cp -r "$root/python/qkcore" "$site/"
cp "$build"/cmake/_cpu*.so "$site/qkcore/"

library() { "${CXX:-g++}" -print-file-name="$1"; }
export PYTHONPATH=$site
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
# Leaks are not looked for: CPython frees little at exit, so a report would say nothing about qkcore. tests/test_limits.py
# looks for growth instead, without a sanitizer. A failed allocation returns null, as without a sanitizer, because
# MemoryError is part of the contract.
export ASAN_OPTIONS=detect_leaks=0:halt_on_error=1:allocator_may_return_null=1:detect_stack_use_after_return=1:strict_init_order=1
export TSAN_OPTIONS=halt_on_error=1:exitcode=66:second_deadlock_stack=1:suppressions=$root/tools/tsan.supp
run=()
case $sanitizers in
thread)
    name=tsan
    # libtsan before GCC 14 does not start if a newer kernel randomises addresses more widely than it expects
    if command -v setarch > /dev/null; then run=(setarch "$(uname -m)" -R); fi
    ;;
*) name=asan ;;
esac
grep -q "__${name}_init" "$site"/qkcore/_cpu_*.so || { echo "$site: the modules are not instrumented" >&2; exit 1; }
preload="$(library "lib$name.so") $(library libstdc++.so.6)"

cd "$root"
[ $# -gt 0 ] || set -- "$python" -m pytest
"${run[@]}" env LD_PRELOAD="$preload" "$python" - "$site" <<'PY'
import pathlib, sys, qkcore
here = pathlib.Path(qkcore.__file__).resolve()
assert here.is_relative_to(pathlib.Path(sys.argv[1]).resolve()), f"qkcore was imported from {here}"
PY
exec "${run[@]}" env LD_PRELOAD="$preload" "$@"
