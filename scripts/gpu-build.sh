#!/usr/bin/env bash
# Builds what scripts/gpu-check.sh runs and puts it, stripped, into one folder, so that it can be carried to a machine
# with a GPU that has no Rust.
#
#   scripts/gpu-build.sh [FOLDER]       default: .carry; PROFILE=dev for a quicker build
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.carry}
profile=${PROFILE:-release}
mkdir -p "$folder"
# Cargo says where it put each executable, one JSON message a line.
built() {
    cargo "$@" --profile "$profile" --message-format=json-render-diagnostics |
        sed -n 's/.*"target":{[^}]*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p'
}
{
    built build -p host --bin host
    built test -p host --no-run --test device
} | sort -u | while read -r name path; do
    cp "$path" "$folder/$name"
    strip "$folder/$name"
    echo "$folder/$name"
done
