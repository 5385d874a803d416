#!/usr/bin/env bash
# nvcc.sh ARGUMENTS: runs nvcc for every architecture that we ship, with warnings as errors. It uses the CUDA toolkit of the
# machine, or otherwise the one from PyPI (QKCORE_NVCC=pip forces that). nvcc.sh --toolkit prints where the toolkit is.
set -euo pipefail

build=${BUILD:-build}
pip_version=13.0 # nvcc, crt, nvvm and runtime must share one minor version
mkdir -p "$build/cuda"

link=()
if [[ ${QKCORE_NVCC:-} != pip ]] && nvcc=$(command -v nvcc || command -v /usr/local/cuda/bin/nvcc); then
    :
else
    venv=$build/cuda/venv
    if [[ ! -e $venv/.stamp ]]; then
        "${PYTHON:-python3}" -m venv "$venv"
        "$venv/bin/python" -m pip --disable-pip-version-check -q install \
            nvidia-cuda-{nvcc,crt,runtime,cccl}=="$pip_version.*" nvidia-nvvm=="$pip_version.*"
        touch "$venv/.stamp"
    fi
    toolkit=$(echo "$venv"/lib/python*/site-packages/nvidia/cu13)
    nvcc=$toolkit/bin/nvcc
    link=(-L"$toolkit/lib") # nvcc looks in lib64, which the wheels from PyPI do not have
fi

if [[ ${1:-} == --toolkit ]]; then
    # nvcc may be found through a link or a script, so it is asked where it is installed.
    top=$("$nvcc" --dryrun -c -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1)
    realpath "${top:-$(dirname "$nvcc")/..}"
    exit
fi

# The kernels need nothing newer than compute_75. So PTX is made once for it, compiled for every architecture, and shipped
# for architectures after sm_120.
architectures=(-gencode 'arch=compute_75,code=[sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_75]')

echo "$("$nvcc" --version | grep release) ($nvcc)"
exec "$nvcc" -Werror=all-warnings --compress-mode=size "${architectures[@]}" "${link[@]}" "$@"
