#!/usr/bin/env python3
"""Reads a run's TensorBoard events with TensorBoard's own package and compares them with the run's other files.

    pip install tensorboard
    scripts/check-events.py RUN

Ends with 1 and says what differs.
"""

import json
import math
import sys
from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def main(run: Path) -> None:
    # 0: all points, where TensorBoard itself would thin them.
    accumulator = EventAccumulator(str(run), size_guidance={"scalars": 0, "histograms": 0, "tensors": 0})
    accumulator.Reload()
    tags = accumulator.Tags()
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if row["kind"] == "step"]
    epochs = [row for row in rows if row["kind"] == "epoch"]
    assert steps and epochs, "the run has no steps"

    # Every point is the mean of the steps since the point before, in f32.
    checked = 0
    for tag, field in [("loss/c51", "loss"), ("gradient norm/total", "gradient_norm"), ("signals/td", "td")]:
        points = accumulator.Scalars(tag)
        before = 0
        for point in points:
            values = [row[field] for row in steps if before < row["step"] <= point.step and row[field] is not None]
            mean = sum(values) / len(values)
            assert math.isclose(point.value, mean, rel_tol=1e-5, abs_tol=1e-7), f"{tag} {point.step}: {point.value} {mean}"
            assert 1.6e9 < point.wall_time < 1e10, f"{tag}: wall time {point.wall_time} is not in seconds"
            before = point.step
            checked += 1
        assert before == steps[-1]["step"], f"{tag} ends at step {before}"

    times = accumulator.Scalars("time/microseconds_per_step")
    assert [point.step for point in times] == [row["step"] for row in epochs], "one step time for each epoch"
    values = [row for row in rows if row["kind"] == "values"]
    for branch in range(len(values[0]["branches"])):
        histograms = accumulator.Histograms(f"value distribution/branch {branch}")
        assert len(histograms) == len(values), f"branch {branch}: {len(histograms)} histograms"
        for histogram, row in zip(histograms, values):
            total = sum(histogram.histogram_value.bucket)
            assert math.isclose(total, row["states"], rel_tol=1e-5), f"branch {branch}: mass {total}"
    sensitivities = [row for row in rows if row["kind"] == "sensitivity"]
    named = [tag for tag in tags["scalars"] if tag.startswith("sensitivity/")]
    assert bool(sensitivities) == bool(named), f"feature sensitivity: {named}"
    tested = json.loads((run / "test.json").read_text())
    for name, value in tested["strategy"].items():
        if isinstance(value, (int, float)):
            point = accumulator.Scalars(f"test/{name}")[-1].value
            assert math.isclose(point, value, rel_tol=1e-5, abs_tol=1e-9), f"test/{name}: {point} {value}"
    print(f"{run}: {len(tags['scalars'])} scalars, {len(tags['histograms'])} histograms, {checked} points as in the metrics")


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except AssertionError as error:
        sys.exit(f"check-events: {error}")
