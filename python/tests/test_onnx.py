"""The ONNX files give the values of the f64 implementation."""

import json

import numpy as np
import pytest

from cases import FOLDER, NAMES, TOLERANCE, expected

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")


def session(name):
    return runtime.InferenceSession(str(FOLDER / name / "policy.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", NAMES)
def test_the_file_is_a_valid_model(name):
    model = onnx.load(FOLDER / name / "policy.onnx")
    onnx.checker.check_model(model, full_check=True)
    metadata = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert metadata["policy"]["state"] == model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    assert metadata["source"]["provenance"]["epoch"] == 3


@pytest.mark.parametrize("name", NAMES)
def test_every_output_is_right(name):
    want = expected(name)
    ran = session(name)
    names = [output.name for output in ran.get_outputs()]
    assert set(names) == set(want) - {"states"}
    got = dict(zip(names, ran.run(None, {"states": want["states"].astype(np.float32)})))
    assert got["actions"].tolist() == want["actions"].tolist()
    for output in set(names) - {"actions"}:
        assert got[output].shape == want[output].shape
        assert np.abs(got[output] - want[output]).max() < TOLERANCE, output


@pytest.mark.parametrize("name", NAMES)
def test_one_state_gives_what_it_gives_among_others(name):
    want = expected(name)
    ran = session(name)
    states = want["states"].astype(np.float32)
    q = np.concatenate([ran.run(["q"], {"states": state[None]})[0] for state in states])
    assert np.abs(q - want["q"]).max() < TOLERANCE
