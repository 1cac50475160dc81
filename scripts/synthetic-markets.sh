#!/usr/bin/env bash
# What a trained policy makes of the two synthetic markets, whose truth is known.
#
#   scripts/synthetic-markets.sh [--bin PROGRAM] [--out FOLDER] [--only learns|control] [-- OPTIONS OF TRAIN]
#
# learns    eight seeds on 300,000 bars of the market with a predictable part: after-cost Sharpe ratio of each beside that
#           of an oracle that knows the regime. Wanted: mean - 2 standard errors above 0, mean share of the oracle's at least
#           a half. The predictable part is 1.5% of a bar's variance, so that 20,000 bars are learnt by heart before it is;
#           and its signal decays by 0.9 a bar: a discount of 0.99 adds the noise of a hundred bars to what ten decide.
# control   one walk-forward of more than a million out-of-sample bars on the martingale without costs: the mean return
#           before costs in standard errors. Wanted: within 3 of zero, with a mean absolute exposure of 0.25 at least.
set -euo pipefail
cd "$(dirname "$0")/.."
bin="" out=synthetic-markets only=""
while [ $# -gt 0 ]; do
    case $1 in
        --bin) bin=$2; shift 2 ;;
        --out) out=$2; shift 2 ;;
        --only) only=$2; shift 2 ;;
        --) shift; break ;;
        *) echo "unknown option $1" >&2; exit 2 ;;
    esac
done
if [ -z "$bin" ]; then
    cargo build --release -p host
    bin=${CARGO_TARGET_DIR:-target}/release/host
fi
mkdir -p "$out"
# Value of a number in the one row of a kind.
value() { grep "\"kind\":\"$2\"" "$1" | grep -oE "\"$3\":-?[0-9.eE+-]+" | head -1 | cut -d: -f2; }
status=0

if [ -z "$only" ] || [ "$only" = learns ]; then
    for seed in 1 2 3 4 5 6 7 8; do
        run=$out/learns-$seed
        "$bin" train --quiet --run "$run" --seed "$seed" --set "data.synthetic_seed=$seed" \
            --set data.synthetic_bars=300000 --set train.gamma=0.9 --set train.epochs=20 "$@" >"$run.txt"
        sharpe=$(grep '"kind":"test"' "$run/metrics.jsonl" | sed 's/"buy_and_hold".*//' |
            grep -oE '"sharpe":-?[0-9.eE+-]+' | cut -d: -f2)
        oracle=$(value "$run/metrics.jsonl" control oracle_sharpe)
        echo "seed $seed  sharpe ${sharpe:-undefined}  oracle ${oracle:-undefined}"
    done | tee "$out/learns.txt"
    awk '
        $4 == "undefined" || $6 == "undefined" { missing++; next }
        { n++; s += $4; q += $4 * $4; o += $6 }
        END {
            if (missing || n < 2) { print "a ratio is undefined"; exit 1 }
            mean = s / n; error = sqrt((q - n * mean * mean) / (n - 1) / n)
            printf "mean Sharpe ratio %.3f, standard error %.3f, mean - 2 errors %.3f, of the oracle %.0f%%\n",
                mean, error, mean - 2 * error, 100 * s / o
            exit !(mean - 2 * error > 0 && s / o >= 0.5)
        }' "$out/learns.txt" || status=1
fi

if [ -z "$only" ] || [ "$only" = control ]; then
    run=$out/control
    "$bin" train --quiet --run "$run" --set data.synthetic=martingale --set data.synthetic_bars=1300000 \
        --set folds.count=5 --set folds.train=0.15 --set folds.validation=0.02 \
        --set market.half_spread=0 --set market.slippage=0 --set market.impact=0 --set market.taker_fee=0 \
        --set market.maker_fee=0 --set market.financing=0 --set market.borrow=0 "$@" >"$run.txt"
    tail -2 "$run.txt"
    sed -n '/"control"/,/}/p' "$run/test.json" | tr -d '",' | awk '
        $1 == "gross_z:" { z = $2 } $1 == "bars:" { bars = $2 } $1 == "mean_exposure:" { x = $2 }
        END {
            printf "%d bars, z %.2f, mean absolute exposure %.2f\n", bars, z, x
            exit !(bars >= 1000000 && z > -3 && z < 3 && x >= 0.25)
        }' || status=1
fi
exit $status
