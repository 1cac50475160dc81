#!/usr/bin/env python3
"""Trains the control tasks with the shipped settings, several seeds each, and holds the last policies against the targets.

    scripts/learning.py --host target/release/host --out FOLDER

Every run gets a folder in FOLDER. What docs/LEARNING.md shows is printed as Markdown: a row for each run, then the mean
over the seeds along the way; FOLDER/learning.json has every epoch. The code is 1 if a seed misses its target or a run
failed. `--set` values go to every run, for a trial at a smaller size.
"""

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

PRESETS = Path(__file__).resolve().parent.parent / "settings/src/presets"

# Name, settings, keys beside them, what is aimed at of the test of the last policy.
RUNS = [
    ("CartPole-v1", "cartpole", [], ("mean_return", 475.0, 1)),
    ("Acrobot-v1", "acrobot", [], ("mean_return", -100.0, 1)),
    ("30 bits, with hindsight", "bit_flip", [], ("terminated", 0.95, 1)),
    ("30 bits, without", "bit_flip", ["her.enabled=false"], ("terminated", 0.05, -1)),
]


def train(options, name, preset, keys, seed):
    """One run; its seconds, epochs and test, or its error."""
    folder = Path(options.out) / f"{name.replace(', ', '-').replace(' ', '-').lower()}-{seed}"
    command = [options.host, "train", "--quiet", "--device", options.device, "--seed", str(seed)]
    command += ["--config", str(options.presets / f"{preset}.toml"), "--run", str(folder)]
    # The ring of a state would be most of what is written here.
    for key in ["checkpoint.states=0", *keys, *options.set]:
        command += ["--set", key]
    begin = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    result = {"name": name, "seed": seed, "keys": keys, "seconds": time.monotonic() - begin}
    if done.returncode != 0:
        return {**result, "error": done.stderr.strip()}
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result["epochs"] = [row for row in rows if row["kind"] == "epoch"]
    result["test"] = json.loads((folder / "test.json").read_text())["last"]
    return result


def met(result, target):
    """Whether a run's test is what is aimed at."""
    key, bound, sign = target
    return "error" not in result and sign * (result["test"][key] - bound) >= 0


def number(report, key):
    """A mean return, or a percentage of solved episodes."""
    return f"{report[key]:.2f}" if key == "mean_return" else f"{100 * report[key]:.0f}%"


def main():
    """Everything; the code that the program ends with."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--host", required=True, help="the program")
    parser.add_argument("--out", required=True, help="a folder for the runs, which has to be new or empty of them")
    parser.add_argument("--presets", type=Path, default=PRESETS, help="folder of the settings")
    parser.add_argument("--device", default="gpu")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10, help="runs at a time")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    Path(options.out).mkdir(parents=True, exist_ok=True)
    plan = [(run, seed) for run in RUNS for seed in range(1, options.seeds + 1)]
    with ThreadPoolExecutor(options.jobs) as pool:
        results = list(pool.map(lambda p: train(options, *p[0][:3], p[1]), plan))
    (Path(options.out) / "learning.json").write_text(json.dumps(results))

    print("| task | seed | last policy, 100 greedy episodes | worst | target | seconds |\n|---|---|---|---|---|---|")
    good = True
    for (run, seed), result in zip(plan, results):
        key, bound, sign = target = run[3]
        aim = f"{'at least' if sign > 0 else 'at most'} {number({key: bound}, key)}"
        good &= met(result, target)
        if "error" in result:
            print(f"| {run[0]} | {seed} | failed: {result['error']} | | {aim} | |")
            continue
        test = result["test"]
        missed = "" if met(result, target) else ", missed"
        print(
            f"| {run[0]} | {seed} | {number(test, key)} | {test['worst_return']:.0f} | {aim}{missed} "
            f"| {result['seconds']:.0f} |"
        )
    for run in RUNS:
        epochs = [r["epochs"] for r in results if r["name"] == run[0] and "error" not in r]
        if epochs:
            curve(run, epochs)
    return 0 if good else 1


def curve(run, seeds):
    """Validation along the way: mean, smallest and largest over the seeds."""
    key = run[3][0]
    last = len(seeds[0])
    for epoch in sorted({1, last, *(round(last * part / 12) for part in (0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10))} - {0}):
        values = [rows[epoch - 1]["validation"][key] for rows in seeds]
        shown = [number({key: v}, key) for v in (sum(values) / len(values), min(values), max(values))]
        print(f"{run[0]}, epoch {epoch}: {shown[0]} ({shown[1]} to {shown[2]})")


if __name__ == "__main__":
    sys.exit(main())
