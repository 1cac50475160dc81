"""The exported policies that the tests run: made by the Rust test `export` (`tests/commands/export.rs`), which also keeps
them up to date. `expected.safetensors` holds states and what the f64 implementation on the CPU says of them."""

from pathlib import Path

from safetensors.numpy import load_file

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "export"
NAMES = ["mlp", "glu", "attention", "mamba", "everything"]
# Largest difference of Q values and other expectations; the support is -10 to 10.
TOLERANCE = 1e-5


def expected(name):
    """Arrays by name: states, actions, q, probabilities and, where the policy has them, quantiles and ensemble."""
    return load_file(FOLDER / name / "expected.safetensors")
