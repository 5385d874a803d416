#!/usr/bin/env bash
# nvcc.sh ARGUMENTS: nvcc for every architecture we ship, warnings as errors. Takes the CUDA toolkit of the machine, or
# without one the toolkit from PyPI (QKCORE_NVCC=pip forces that).
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

architectures=()
for sm in 75 80 86 89 90 100 120; do
    architectures+=(-gencode "arch=compute_$sm,code=sm_$sm")
done
architectures+=(-gencode arch=compute_75,code=compute_75) # PTX, for what comes after sm_120

echo "$("$nvcc" --version | grep release) ($nvcc)"
exec "$nvcc" -Werror=all-warnings --compress-mode=size "${architectures[@]}" "${link[@]}" "$@"
