#!/usr/bin/env bash
# Runs the Python tests of exported policies: ONNX files through ONNX Runtime, and the torch module where torch is
# installed (it is large, so it is not installed here). Makes an environment of its own in target/python.
#
#   scripts/python-check.sh             installs onnx, onnxruntime, safetensors and pytest with pip
#   PYTHON=python3.11 scripts/python-check.sh
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null; then
    printf 'python-check: %s is not Python 3.9 or later\n' "$python" >&2
    exit 1
fi
folder=${CARGO_TARGET_DIR:-target}/python
# What the machine has, torch above all, is seen from inside.
if [ ! -x "$folder/bin/python" ]; then "$python" -m venv --system-site-packages "$folder"; fi
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check onnx onnxruntime safetensors pytest numpy
PYTHONPATH=python:python/tests "$folder/bin/python" -m pytest -q -rs python/tests
