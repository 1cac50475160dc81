#!/usr/bin/env python3
"""Records single steps of Gymnasium's classic control tasks: the fixtures tests/data/gymnasium_*.safetensors.

    python3 -m venv venv && venv/bin/pip install gymnasium==1.4.0 numpy safetensors
    venv/bin/python scripts/record-gymnasium.py tests/data

Before each step the environment's state is rounded to f32, so that the recorded number is the one that was stepped from.
Episodes are whole ones: half of them by random actions, half by a simple controller, so that both ways to end occur.

Tensors of a file, N steps in M episodes: `states` f32 [N + M, n], the states of each episode and then the one after its
last step; `actions`, `terminated`, `truncated` u8 [N]; `rewards` i8 [N]; `lengths` u32 [M].
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np
from safetensors.numpy import save_file


def balance(s):
    """CartPole: pushes against the fall."""
    return int(s[2] + 0.5 * s[3] + 0.05 * s[0] + 0.1 * s[1] > 0)


def pump(s):
    """Acrobot: torque along the outer joint's motion."""
    return 2 if s[3] > 0 else 0


def push(s):
    """MountainCar: along the motion."""
    return 2 if s[1] > 0 else 0


TASKS = [
    ("cartpole", "CartPole-v1", 100_000, balance),
    ("acrobot", "Acrobot-v1", 100_000, pump),
    ("mountain_car", "MountainCar-v0", 10_000, push),
]


def record(name, steps, controller):
    env = gymnasium.make(name)
    random = np.random.default_rng(1)
    states, actions, rewards, terminated, truncated, lengths = [], [], [], [], [], []
    total, episode = 0, 0
    while total < steps:
        env.reset(seed=episode)
        length, over = 0, False
        while not over:
            state = np.asarray(env.unwrapped.state, dtype=np.float32)
            env.unwrapped.state = state.astype(np.float64)
            # A controller that errs in some steps sees more of the task.
            by_chance = episode % 2 == 0 or random.random() < 0.1
            action = int(random.integers(env.action_space.n)) if by_chance else controller(state)
            _, reward, end, cut, _ = env.step(action)
            states.append(state)
            actions.append(action)
            rewards.append(int(reward))
            terminated.append(end)
            truncated.append(cut)
            length += 1
            over = end or cut
        states.append(np.asarray(env.unwrapped.state, dtype=np.float32))
        lengths.append(length)
        total += length
        episode += 1
    return {
        "states": np.stack(states),
        "actions": np.array(actions, np.uint8),
        "rewards": np.array(rewards, np.int8),
        "terminated": np.array(terminated, np.uint8),
        "truncated": np.array(truncated, np.uint8),
        "lengths": np.array(lengths, np.uint32),
    }


for file, name, steps, controller in TASKS:
    tensors = record(name, steps, controller)
    path = Path(sys.argv[1]) / f"gymnasium_{file}.safetensors"
    save_file(tensors, path, {"environment": name, "gymnasium": gymnasium.__version__})
    print(path, {k: v.shape for k, v in tensors.items()}, "terminated", tensors["terminated"].sum(), "truncated", tensors["truncated"].sum())
