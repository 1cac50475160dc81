#!/usr/bin/env bash
# A small run on the CPU, and what others make of its files: TensorBoard's own package reads the events, a browser lays out
# the page. What is not on the machine is installed where that is quick, else said and left out.
# Usage: scripts/check-run.sh [PROGRAM], by default the debug build.
set -euo pipefail
cd "$(dirname "$0")/.."
program=${1:-${CARGO_TARGET_DIR:-target}/debug/host}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo -n "$@"; else return 1; fi
}

"$program" train --device cpu --quiet --run "$folder/run" --set data.synthetic_bars=3000 --set train.batch=32 \
    --set train.train_steps=120 --set train.epochs=4 --set probe.enabled=true --set probe.every=20 \
    --set cql.enabled=true --set collect.environments=16

if python3 -m venv "$folder/python" >/dev/null 2>&1 && timeout 300 "$folder/python/bin/pip" install -q tensorboard; then
    "$folder/python/bin/python" scripts/check-events.py "$folder/run"
else
    echo "check-run: left out TensorBoard's package: it could not be installed"
fi

if ! command -v chromium >/dev/null; then
    (as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive timeout 300 apt-get install -y -qq \
        --no-install-recommends chromium) >/dev/null 2>&1 || true
fi
if command -v chromium >/dev/null; then
    python3 scripts/check-page.py "$folder/run/report.html"
else
    echo "check-run: left out the browser: chromium could not be installed"
fi
