#!/usr/bin/env bash
# Everything that needs a GPU, in one go: what the machine has, the device tests, the sanitizer on the kernels' tests,
# the time of the training step. Prints a short table last; full logs go to the output folder.
#
#   scripts/gpu-check.sh                      builds first (needs Rust, see setup.sh)
#   scripts/gpu-check.sh --bin FOLDER         runs what scripts/gpu-build.sh put there
#   options: --out FOLDER (logs, default gpu-check-out), --only PART, PART one of tests, sanitize, profile, bench,
#            --limit SECONDS of one test under the sanitizer (default 600)
#   The benches run where the folder holds them (BENCHES=1 scripts/gpu-build.sh FOLDER).
set -uo pipefail
cd "$(dirname "$0")/.."
bin="" out=gpu-check-out only="" limit=600
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        --only) only=$2; shift 2 ;;
        --limit) limit=$2; shift 2 ;;
        *) echo "unknown option $1" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"
if [ -z "$bin" ]; then
    bin=.carry
    scripts/gpu-build.sh "$bin" || exit 1
fi
chmod +x "$bin"/* 2>/dev/null
table=()
status=0
part() { [ -z "$only" ] || [ "$only" = "$1" ]; }
note() { table+=("$(printf '%-28s %s' "$1" "$2")"); }

"$bin/host" doctor | tee "$out/doctor.log"

# Runs kernel bodies side by side, each few of them in a process of their own: within one process a capture forbids
# others to wait for the context. `side_by_side LOG COUNT PREFIX...` reads the names; PREFIX is what runs the program.
jobs=$(nproc 2>/dev/null || echo 4)
[ "$jobs" -le 12 ] || jobs=12
side_by_side() {
    local log=$1 count=$2
    shift 2
    xargs -P "$jobs" -n "$count" "$@" "$bin/device" --ignored --test-threads=1 --exact >"$log" 2>&1
}
# Sum of the numbers before a word in a log: `12 passed`.
total() { grep -oE "[0-9]+ $2" "$1" | awk '{ n += $1 } END { print n + 0 }'; }

if part tests || part sanitize; then
    "$bin/device" --ignored --list 2>/dev/null | sed -n 's/: test$//p' >"$out/tests.txt"
    grep '^gpu_kernels::' "$out/tests.txt" >"$out/kernels.txt"
fi

if part tests; then
    side_by_side "$out/kernels.log" 2 <"$out/kernels.txt"
    code=$?
    [ $code -eq 0 ] || { status=1; grep -A 12 -E '^---- |panicked at' "$out/kernels.log" | head -n 150; }
    passed=$(total "$out/kernels.log" passed)
    note "kernel tests" "$passed of $(wc -l <"$out/kernels.txt") passed, exit code $code"
    [ "$passed" = "$(wc -l <"$out/kernels.txt")" ] || status=1

    "$bin/device" --ignored --test-threads=1 --skip gpu_kernels:: >"$out/device.log" 2>&1
    code=$?
    result=$(grep '^test result' "$out/device.log" | tail -n 1)
    [ $code -eq 0 ] || { status=1; grep -A 12 -E '^---- |panicked at' "$out/device.log" | head -n 150; }
    note "other device tests" "${result:-no result, exit code $code}"
fi

if part sanitize; then
    if command -v compute-sanitizer >/dev/null; then
        # Racecheck slows a kernel by two orders of magnitude. The whole steps add no kernel to those that the other
        # tests run one by one, besides cuBLASLt's.
        grep -vE 'golden|_step::|whole_' "$out/kernels.txt" >"$out/small.txt"
        # Each test in a process of its own with a log of its own and a limit, so that one that does not end is named and
        # the others still count.
        for tool in memcheck racecheck; do
            names=$out/kernels.txt
            [ $tool = memcheck ] || names=$out/small.txt
            mkdir -p "$out/$tool"
            rm -f "$out/$tool"/*
            check="timeout $limit compute-sanitizer --tool $tool --error-exitcode 99"
            xargs -P "$jobs" -I NAME sh -c \
                "$check '$bin/device' --ignored --test-threads=1 --exact NAME >'$out/$tool/NAME.log' 2>&1 || echo NAME \$? >>'$out/$tool/failed'" \
                <"$names"
            clean=$(grep -lE '(ERROR|RACECHECK) SUMMARY: 0 ' "$out/$tool"/*.log | wc -l)
            if [ -s "$out/$tool/failed" ] || [ "$clean" != "$(wc -l <"$names")" ]; then
                status=1
                echo "$tool: test and exit code (124: not ended in $limit s)"
                cat "$out/$tool/failed"
                grep -hE '^=========' $(sed "s|^\([^ ]*\) .*|$out/$tool/\1.log|" "$out/$tool/failed") | head -n 60
            fi
            note "$tool on kernel tests" "$clean of $(wc -l <"$names") clean"
        done
    else
        note "sanitizer" "compute-sanitizer is not installed: not run"
    fi
fi

if part profile; then
    "$bin/host" profile --json "$out/profile.json" --nodes >"$out/profile.log" 2>&1
    code=$?
    [ $code -eq 0 ] || { status=1; tail -n 20 "$out/profile.log"; }
    note "step timing" "exit code $code"
    table+=("$(grep -A 20 '^products ' "$out/profile.log")")
fi

if part bench; then
    for bench in training parts attention iqn mamba noisy auxiliary sampling products market tasks staging; do
        [ -x "$bin/$bench" ] || continue
        CRITERION_HOME=$out/criterion "$bin/$bench" --bench >"$out/$bench.log" 2>&1
        code=$?
        [ $code -eq 0 ] || { status=1; tail -n 20 "$out/$bench.log"; }
        note "bench $bench" "$(grep -c 'time:' "$out/$bench.log") figures, exit code $code"
    done
fi

echo
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
date -u +%F
printf '%s\n' "${table[@]}"
exit $status
