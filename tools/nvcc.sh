#!/usr/bin/env bash
# nvcc.sh ARGUMENTS: nvcc for every architecture we ship, warnings as errors. Takes the CUDA toolkit of the machine, or
# without one the toolkit from PyPI (QKCORE_NVCC=pip forces that). nvcc.sh --toolkit prints where that toolkit is.
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
    link=(-L"$toolkit/lib") # nvcc looks in lib64, which the wheels do not have
fi

if [[ ${1:-} == --toolkit ]]; then
    # nvcc may be reached by a link or a script: it knows itself where it is.
    top=$("$nvcc" --dryrun -c -x cu /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p' | head -n 1)
    realpath "${top:-$(dirname "$nvcc")/..}"
    exit
fi

# Nothing in the kernels is newer than compute_75: one PTX, made once, is compiled for every architecture, and shipped
# for what comes after sm_120.
architectures=(-gencode 'arch=compute_75,code=[sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_75]')

echo "$("$nvcc" --version | grep release) ($nvcc)"
exec "$nvcc" -Werror=all-warnings --compress-mode=size "${architectures[@]}" "${link[@]}" "$@"
