#!/usr/bin/env python3
"""Writes the small transition data sets of tests/data/transitions with the libraries that people write them with.

    pip install numpy pyarrow safetensors h5py && scripts/record-transitions.py

Three episodes of 4, 3 and 2 transitions, S = 3, two branches. The state before transition i of all is [i, i + 1/8, i + 2/8],
or with j added up over episodes: an episode's last next state is 100 above its first state. The first episode terminates,
the second is truncated, the third is both. The Minari file has the same episodes in its layout (as
minari.dataset._storages.hdf5_storage writes it), the third one recorded without an end.
"""

from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.numpy import save_file

FOLDER = Path(__file__).parents[1] / "tests" / "data" / "transitions"
LENGTHS = [4, 3, 2]


def arrays():
    n = sum(LENGTHS)
    states = np.arange(n)[:, None] + np.arange(3)[None] / 8
    next_states = states + 1
    ends = np.cumsum(LENGTHS) - 1
    next_states[ends] += 100
    terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
    terminated[ends[[0, 2]]] = True
    truncated[ends[[1, 2]]] = True
    actions = np.stack([np.arange(n) % 3, np.arange(n) % 2], axis=1)
    return {
        "states": states.astype(np.float32),
        "actions": actions.astype(np.int64),
        "rewards": (2.0 ** np.arange(n)).astype(np.float64),
        "next_states": next_states.astype(np.float32),
        "terminated": terminated,
        "truncated": truncated,
    }


def main():
    FOLDER.mkdir(exist_ok=True)
    data = arrays()
    np.savez(FOLDER / "plain.npz", **data)
    np.savez_compressed(FOLDER / "compressed.npz", **data)
    save_file({**data, "terminated": data["terminated"].astype(np.uint8)}, FOLDER / "small.safetensors")
    lists = {name: list(value) if value.ndim == 2 else value for name, value in data.items()}
    pq.write_table(pa.table(lists), FOLDER / "lists.parquet", compression="zstd")
    fixed = dict(lists)
    fixed["states"] = pa.FixedSizeListArray.from_arrays(pa.array(data["states"].ravel()), 3)
    pq.write_table(pa.table(fixed), FOLDER / "fixed.parquet", compression="snappy", row_group_size=4)
    with h5py.File(FOLDER / "minari.hdf5", "w") as file:
        file.attrs["total_episodes"] = len(LENGTHS)
        start = 0
        for episode, length in enumerate(LENGTHS):
            rows = slice(start, start + length)
            start += length
            group = file.create_group(f"episode_{episode}")
            group.attrs["id"] = episode
            group.attrs["total_steps"] = length
            observations = np.concatenate([data["states"][rows], data["next_states"][rows][-1:]])
            flags = {"terminations": data["terminated"][rows], "truncations": data["truncated"][rows]}
            if episode == 2:
                flags = {name: np.zeros(length, bool) for name in flags}
            for name, value in {
                "observations": observations,
                "actions": data["actions"][rows],
                "rewards": data["rewards"][rows],
                **flags,
            }.items():
                group.create_dataset(name, data=value, chunks=True, compression="gzip", compression_opts=1)


if __name__ == "__main__":
    main()
