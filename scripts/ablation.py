#!/usr/bin/env python3
"""What each part is worth: all of them together, and every one switched off by itself, over several seeds. A part that would
hide what the others do is not in the whole but switched on by itself.

    scripts/ablation.py --host target/release/host --out FOLDER [--only market|task]

market    300,000 bars of the synthetic market (`scripts/synthetic-markets.sh` says why so many, and why gamma is 0.9): the
          after-cost Sharpe ratio of the test part as a share of that of an oracle that knows the regime.
task      Acrobot with its shipped settings: the mean return over all validations of a run, which is higher for who learns
          sooner (the last ones are all alike).

Differences are taken seed by seed, so that what the seeds have in common falls out. A part whose removal gains more than
two standard errors ought to be off by default; the table marks it. FOLDER/ablation.json has every run that has ended, written
anew at the end of each: stopped from outside, the program loses the runs under way alone. `--known FILE`, such a file of before
(FOLDER's own too), says which need not be made again (runs of one program, seed, settings and kind of GPU are the same bits), and
`--seconds` after how long no further run begins, so that the table can be made in parts. The code is 1 if a run failed, 3 if
runs are left. `--set` values go to every run, for a trial at a smaller size.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

PRESETS = Path(__file__).resolve().parent.parent / "settings/src/presets"

# Part, keys that switch it on, keys that switch it off.
PARTS = [
    ("CQL", ["cql.enabled=true"], ["cql.enabled=false"]),
    ("IQN", ["iqn.enabled=true"], ["iqn.enabled=false"]),
    ("IQL", ["iql.enabled=true"], ["iql.enabled=false"]),
    ("ensemble", ["ensemble.enabled=true"], ["ensemble.enabled=false"]),
    ("confidence head", ["confidence.enabled=true"], ["confidence.enabled=false"]),
    ("spectral norm", ["spectral.enabled=true"], ["spectral.enabled=false"]),
    ("prioritized replay", ["replay.prioritized=true"], ["replay.prioritized=false"]),
    ("returns of 3 steps", ["replay.n_step=3"], ["replay.n_step=1"]),
    ("gated heads", ["model.head=glu"], ["model.head=mlp"]),
]
# These read the window of bars, which a control task has not.
OF_BARS = [
    ("attention", ["attention.enabled=true"], ["attention.enabled=false"]),
    ("Mamba-2 block", ["mamba.enabled=true"], ["mamba.enabled=false"]),
    ("vaccine", ["vaccine.enabled=true"], ["vaccine.enabled=false"]),
]
# With CQL nothing gets off the ground that has to explore, whatever else is on.
ADDED = {"market": ["CQL"], "task": ["CQL"]}
MARKET = ["data.synthetic_bars=300000", "train.gamma=0.9", "train.epochs=20"]


def of_market(folder, seed):
    """Share of the oracle's Sharpe ratio."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (control,) = [row for row in rows if row["kind"] == "control"]
    (test,) = [row for row in rows if row["kind"] == "test"]
    sharpe = test["strategy"]["sharpe"]
    return (0.0 if sharpe is None else sharpe) / control["oracle_sharpe"]


def of_task(folder, seed):
    """Mean of all validations."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    returns = [row["validation_return"] for row in rows if row["kind"] == "epoch"]
    return sum(returns) / len(returns)


STUDIES = {
    "market": (PARTS + OF_BARS, of_market, "share of the oracle's Sharpe ratio", "{:+.3f}", "{:.3f}"),
    "task": (PARTS, of_task, "mean return of all validations", "{:+.1f}", "{:.1f}"),
}


def arguments(study, seed):
    """Of a run without parts."""
    if study == "market":
        return [a for key in [*MARKET, f"data.synthetic_seed={seed}"] for a in ("--set", key)]
    return ["--config", str(PRESETS / "acrobot.toml")]


def train(options, study, name, keys, seed):
    """One run: its value, or its error; nothing where the time is over."""
    if time.monotonic() > options.end:
        return None
    begun = time.monotonic()
    folder = Path(options.out) / f"{study}-{name.replace(' ', '-').lower()}-{seed}"
    command = [options.host, "train", "--quiet", "--device", options.device, "--seed", str(seed)]
    command += [*arguments(study, seed), "--run", str(folder)]
    # Neither states nor distributions are looked at.
    for key in ["checkpoint.states=0", "report.values_every=0", "report.resamples=0", *keys, *options.set]:
        command += ["--set", key]
    done = subprocess.run(command, capture_output=True, text=True)
    result = {"study": study, "without": name, "seed": seed, "keys": [*keys, *options.set]}
    if done.returncode != 0:
        return {**result, "error": done.stderr.strip() or f"code {done.returncode}"}
    seconds = round(time.monotonic() - begun, 1)
    return {**result, "value": STUDIES[study][1](folder, seed), "seconds": seconds}


def spread(values):
    """Mean and standard error."""
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, math.nan
    return mean, math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1) / len(values))


def table(study, results):
    """A study's rows; whether all of its runs came to an end."""
    parts, _, what, signed, plain = STUDIES[study]
    values = {(r["without"], r["seed"]): r["value"] for r in results if r["study"] == study and "value" in r}
    seeds = sorted({r["seed"] for r in results})
    whole = [values[("nothing", s)] for s in seeds if ("nothing", s) in values]
    failed = [r for r in results if r["study"] == study and "error" in r]
    for r in failed:
        print(f"{study}, without {r['without']}, seed {r['seed']}: {r['error']}", file=sys.stderr)
    if not whole:
        return False
    mean, error = spread(whole)
    print(f"\n{study}: {what}, {len(whole)} seeds, the whole {plain.format(mean)} +- {plain.format(error)}\n")
    print("| without | value | difference | standard error | |\n|---|---|---|---|---|")
    names = [("with " if name in ADDED[study] else "", name) for name, _, _ in parts]
    for way, name in [*names, ("", "all of them")]:
        both = [s for s in seeds if (name, s) in values and ("nothing", s) in values]
        if not both:
            print(f"| {way}{name} | failed | | | |")
            continue
        mean, _ = spread([values[(name, s)] for s in both])
        gain, error = spread([values[(name, s)] - values[("nothing", s)] for s in both])
        # What the part itself does.
        gain_of_part = gain if way else -gain
        mark = "worth having" if gain_of_part > 2 * error else "better without" if gain_of_part < -2 * error else ""
        print(f"| {way}{name} | {plain.format(mean)} | {signed.format(gain)} | {plain.format(error)} | {mark} |")
    return not failed


def keep(file, results):
    """Writes what there is, whole or not at all."""
    written = file.with_suffix(".tmp")
    written.write_text(json.dumps(results))
    written.replace(file)


def main():
    """Everything; the code that the program ends with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", required=True, help="the program")
    parser.add_argument("--out", required=True, help="a folder for the runs, which has to be new or empty of them")
    parser.add_argument("--only", choices=STUDIES, help="one study")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=8, help="runs at a time")
    parser.add_argument("--known", type=Path, help="results of before")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which no further run begins")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    plan = []
    studies = [options.only] if options.only else list(STUDIES)
    for study in studies:
        parts = STUDIES[study][0]
        added = ADDED[study]
        on = [k for name, on, off in parts for k in (off if name in added else on)]
        off = [k for _, _, off in parts for k in off]
        variants = [("nothing", on), ("all of them", off)]
        for name, part_on, part_off in parts:
            before, after = (part_off, part_on) if name in added else (part_on, part_off)
            variants.append((name, [k for k in on if k not in before] + after))
        plan += [(study, name, keys, seed) for seed in range(1, options.seeds + 1) for name, keys in variants]
    before = [r for r in json.loads(options.known.read_text()) if "value" in r] if options.known else []
    # By what was switched, whatever the run was called.
    known = {(r["study"], frozenset(r["keys"]), r["seed"]): r for r in before}
    results, missing = [r for r in before if r["study"] not in studies], []
    for study, name, keys, seed in plan:
        run = known.get((study, frozenset([*keys, *options.set]), seed))
        if run is None:
            missing.append((study, name, keys, seed))
        else:
            results.append({**run, "without": name})
    options.end = time.monotonic() + options.seconds
    left, file = 0, Path(options.out) / "ablation.json"
    keep(file, results)
    with ThreadPoolExecutor(options.jobs) as pool:
        for run in as_completed([pool.submit(train, options, *p) for p in missing]):
            if run.result() is None:
                left += 1
                continue
            results.append(run.result())
            keep(file, results)
    good = [table(study, results) for study in STUDIES if any(r["study"] == study for r in results)]
    if left:
        print(f"{left} runs are left", file=sys.stderr)
    return 1 if not all(good) else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
