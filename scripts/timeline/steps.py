#!/usr/bin/env python3
"""One training step as a timeline, from what `trace.c` wrote: the kernels in the order of their starts, in microseconds from
the step's first one.

    scripts/timeline/steps.py kernels.txt [--first sample_gather] [--skip 50]

The step printed is the median one by length of those from the `--skip`th on. `--first` is the kernel that a step begins with.
"""

import argparse
from pathlib import Path


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--first", default="sample_gather")
    parser.add_argument("--skip", type=int, default=50)
    options = parser.parse_args()
    rows = []
    for line in options.file.read_text().splitlines():
        name, start, end, blocks, threads = line.rsplit(" ", 4)
        rows.append((int(start), int(end), name, int(blocks), int(threads)))
    rows.sort()
    steps, step = [], []
    for row in rows:
        if row[2].startswith(options.first) and step:
            steps.append(step)
            step = []
        step.append(row)
    # `host profile` runs the sections by themselves too: whole steps are those that most kernels belong to.
    counts = [len(s) for s in steps[options.skip:]]
    if not counts:
        raise SystemExit(f"{options.file}: fewer than {options.skip} steps that begin with {options.first}")
    usual = max(set(counts), key=lambda count: count * counts.count(count))
    whole = sorted((s for s in steps[options.skip:] if len(s) == usual), key=lambda s: max(r[1] for r in s) - s[0][0])
    step = whole[len(whole) // 2]
    zero = step[0][0]
    print(f"{len(whole)} steps of {usual} kernels; the median one, us:")
    print("   start      end   length  blocks  kernel")
    for start, end, name, blocks, threads in step:
        print(f"{(start - zero) / 1e3:8.1f} {(end - zero) / 1e3:8.1f} {(end - start) / 1e3:8.1f}  {blocks:6}  {name} ({threads})")


if __name__ == "__main__":
    main()
