#!/usr/bin/env python3
"""Records transitions of a Gymnasium environment as a data set for `host train --transitions`.

    python3 -m venv venv && venv/bin/pip install gymnasium numpy
    venv/bin/python scripts/record-transitions.py cartpole.npz
    host data check cartpole.npz --set 'model.branches=[2]'
    host train --transitions cartpole.npz --set 'model.branches=[2]' --set model.v_min=0 --set model.v_max=100

The arrays have Minari's names: `observations`, `actions`, `rewards`, `next_observations`, `terminations`, `truncations`. A
next observation is the one after the action, at the end of an episode its final one and not the next episode's first.
Actions are random in a share of the steps and otherwise those of a simple controller, where there is one here for the
environment (CartPole-v1); a data set that shows bad actions too is one that something can be learned from.

With --fixtures it writes the small files of tests/data/transitions instead, with the libraries that people write them
with: pip install h5py pyarrow safetensors too.
"""

import argparse
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parents[1] / "tests" / "data" / "transitions"


def balance(s):
    """CartPole: pushes against the fall."""
    return int(s[2] + 0.5 * s[3] + 0.05 * s[0] + 0.1 * s[1] > 0)


CONTROLLERS = {"CartPole-v1": balance}


def record(name, steps, share, seed):
    """About `steps` transitions in whole episodes; a `share` of the actions is random."""
    import gymnasium

    env = gymnasium.make(name)
    controller = CONTROLLERS.get(name)
    random = np.random.default_rng(seed)
    rows = {key: [] for key in ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")}
    episode = 0
    while len(rows["rewards"]) < steps:
        observation, _ = env.reset(seed=seed + episode)
        # Each episode has a share of its own, from almost none to almost all; their mean is the one asked for.
        chance = 1.0 if controller is None else random.random() ** (1 / max(share, 1e-9) - 1)
        over = False
        while not over:
            by_chance = random.random() < chance
            action = int(random.integers(env.action_space.n)) if by_chance else controller(observation)
            following, reward, terminated, truncated, _ = env.step(action)
            values = (observation, action, reward, following, terminated, truncated)
            for key, value in zip(rows, values):
                rows[key].append(value)
            observation, over = following, terminated or truncated
        episode += 1
    kinds = {"observations": np.float32, "next_observations": np.float32, "actions": np.int64, "rewards": np.float32}
    return {key: np.asarray(values, dtype=kinds.get(key, bool)) for key, values in rows.items()}


def fixture():
    """Three episodes of 4, 3 and 2 transitions, S = 3, two branches.

    The state before transition i of all is [i, i + 1/8, i + 2/8]; an episode's last next state is 100 above what would be
    the next row's. The first episode terminates, the second is truncated, the third is both.
    """
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


LENGTHS = [4, 3, 2]


def write_fixtures():
    """The same transitions in every format; Minari's as its HDF5 storage writes them, the third episode without an end."""
    import h5py
    import pyarrow as pa
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    FIXTURES.mkdir(exist_ok=True)
    data = fixture()
    np.savez(FIXTURES / "plain.npz", **data)
    np.savez_compressed(FIXTURES / "compressed.npz", **data)
    save_file({**data, "terminated": data["terminated"].astype(np.uint8)}, FIXTURES / "small.safetensors")
    lists = {name: list(value) if value.ndim == 2 else value for name, value in data.items()}
    pq.write_table(pa.table(lists), FIXTURES / "lists.parquet", compression="zstd")
    fixed = dict(lists)
    fixed["states"] = pa.FixedSizeListArray.from_arrays(pa.array(data["states"].ravel()), 3)
    pq.write_table(pa.table(fixed), FIXTURES / "fixed.parquet", compression="snappy", row_group_size=4)
    with h5py.File(FIXTURES / "minari.hdf5", "w") as file:
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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", help="file to write, .npz")
    parser.add_argument("--environment", default="CartPole-v1", help="name of a Gymnasium environment with discrete actions")
    parser.add_argument("--steps", type=int, default=20_000, help="transitions, rounded up to a whole episode")
    parser.add_argument("--random", type=float, default=0.5, help="share of the actions that are random, about")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fixtures", action="store_true", help="write the files of tests/data/transitions")
    args = parser.parse_args()
    if args.fixtures:
        write_fixtures()
    elif args.out is None:
        parser.error("name the file to write")
    else:
        data = record(args.environment, args.steps, args.random, args.seed)
        np.savez(args.out, **data)
        ends = data["terminations"] | data["truncations"]
        print(f"{args.out}: {len(ends)} transitions in {ends.sum()} episodes")


if __name__ == "__main__":
    main()
