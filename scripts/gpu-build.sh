#!/usr/bin/env bash
# Builds what scripts/gpu-check.sh runs and puts it, stripped, into one folder, so that it can be carried to a machine
# with a GPU that has no Rust.
#
#   scripts/gpu-build.sh [FOLDER]       default: .carry; PROFILE=dev for a quicker build, BENCHES=1 with the benches
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-.carry}
profile=${PROFILE:-release}
mkdir -p "$folder"
# Cargo says where it put each executable, one JSON message a line.
built() {
    local command=$1
    shift
    # Benches have a profile of their own, with the settings of `release`.
    local chosen=(--profile "$profile")
    [ "$command" != bench ] || chosen=()
    cargo "$command" "$@" "${chosen[@]}" --message-format=json-render-diagnostics |
        sed -n 's/.*"target":{[^}]*"name":"\([^"]*\)".*"executable":"\([^"]*\)".*/\1 \2/p'
}
{
    built build -p host --bin host
    built test -p host --no-run --test device
    [ -z "${BENCHES:-}" ] || built bench -p host --no-run --benches | grep -E '^(training|parts|attention|iqn|mamba|noisy|auxiliary|sampling|products|market|tasks|staging) '
} | sort -u | while read -r name path; do
    cp "$path" "$folder/$name"
    strip "$folder/$name"
    echo "$folder/$name"
done
