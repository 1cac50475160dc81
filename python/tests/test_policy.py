"""The torch module loads the exported tensors and gives the values of the f64 implementation."""

import numpy as np
import pytest

from cases import FOLDER, NAMES, TOLERANCE, expected

torch = pytest.importorskip("torch")

from stepgraph_policy import Policy  # noqa: E402


@pytest.mark.parametrize("name", NAMES)
def test_every_output_is_right(name):
    want = expected(name)
    policy = Policy.load(FOLDER / name / "policy.safetensors")
    with torch.no_grad():
        got = policy(torch.tensor(want["states"].astype(np.float32).tolist()))._asdict()
    assert {key for key, value in got.items() if value is not None} == set(want) - {"states"}
    assert got["actions"].tolist() == want["actions"].tolist()
    for output in set(want) - {"states", "actions"}:
        values = np.array(got[output].tolist())
        assert values.shape == want[output].shape
        assert np.abs(values - want[output]).max() < TOLERANCE, output


def test_the_state_dict_has_the_names_of_the_file():
    from safetensors import safe_open

    for name in NAMES:
        path = FOLDER / name / "policy.safetensors"
        with safe_open(str(path), framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}
        policy = Policy.load(path)
        assert {key: tuple(value.shape) for key, value in policy.state_dict().items()} == shapes


def test_in_double_precision_nothing_but_rounding_is_left():
    want = expected("everything")
    policy = Policy.load(FOLDER / "everything" / "policy.safetensors").double()
    with torch.no_grad():
        q = policy(torch.tensor(want["states"].tolist(), dtype=torch.float64)).q
    # Weights and support are f32 numbers in both, so that only sums in another order differ.
    assert np.abs(np.array(q.tolist()) - want["q"]).max() < 1e-9


def test_other_files_are_refused(tmp_path):
    from safetensors.numpy import save_file

    other = tmp_path / "other.safetensors"
    save_file({"x": np.zeros(3, np.float32)}, other)
    with pytest.raises(ValueError, match="no exported policy"):
        Policy.load(other)
