#!/bin/sh
# An environment of its own for verifiers and gem-llm: scripts/install_envs_of_others.sh [FOLDER]   (.venv-envs; 0.7 GB)
#
# What they pin does not fit beside what turnwise pins, so `rollout.isolation.python` names the Python in here. Neither
# needs torch; should something else that is installed here ask for it, it gets the version without a download of CUDA.
set -eu
venv=${1:-.venv-envs}
python=${PYTHON:-python3.11}

"$python" -m venv "$venv"
pip="$venv/bin/pip"
echo 'torch==2.13.0' > "$venv/constraints.txt"
"$pip" install --quiet --constraint "$venv/constraints.txt" numpy pydantic 'verifiers==0.4.0' 'gem-llm==0.1.0'
"$venv/bin/python" -c 'import gem, verifiers.v1; print("verifiers and gem-llm are in", __import__("sys").prefix)'
touch "$venv/.installed"
