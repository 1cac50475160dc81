#!/usr/bin/env bash
# A small run on the CPU, and what others make of its files: TensorBoard's own package reads the events, a browser lays out
# the page. Needs `python3 -m venv`, PyPI, and Debian's package chromium; ends with 1 where one of them is missing.
# Usage: scripts/check-run.sh [PROGRAM [SCREENSHOT.png]], by default the debug build and no screenshot.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-${CARGO_TARGET_DIR:-target}/debug/host}
screenshot=${2:+--screenshot $2}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

"$program" train --device cpu --quiet --run "$folder/run" --set data.synthetic_bars=3000 --set train.batch=32 \
    --set train.train_steps=120 --set train.epochs=4 --set probe.enabled=true --set probe.every=20 \
    --set cql.enabled=true --set collect.environments=16

python3 -m venv "$folder/python"
"$folder/python/bin/pip" install -q tensorboard
"$folder/python/bin/python" scripts/check-events.py "$folder/run"
# shellcheck disable=SC2086 # an option and its value
python3 scripts/check-page.py "$folder/run/report.html" $screenshot
