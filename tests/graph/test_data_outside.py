"""An ONNX file cannot bring in what lies outside its folder as its weights."""

import os

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from torture.kinds import graph_with_data_apart

from enginewright.core.errors import EnginewrightError
from enginewright.graph.onnx_file import load_graph

VALUES = np.arange(4 * 27, dtype=np.float32).tobytes()


def hard(target, path):
    os.link(target, path)


def soft(target, path):
    path.symlink_to(target)


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "project").mkdir()
    secret = tmp_path / "secret"
    secret.write_bytes(VALUES)
    return secret


@pytest.mark.parametrize(
    ("location", "link"),
    [
        ("../secret", None),
        ("./../secret", None),
        ("sub/../../secret", None),
        ("SECRET", None),
        ("weights", soft),
        ("weights", hard),
        ("sub/weights", soft),
        ("/etc/passwd", None),
        ("", None),
        (".", None),
        ("/dev/zero", None),
        ("weights\0", None),
        ("C:\\secret", None),
    ],
)
def test_data_outside_the_folder_is_refused(outside, location, link, monkeypatch):
    folder = outside.parent / "project"
    (folder / "sub").mkdir()
    if link:
        link(outside, folder / location)
    path = folder / "model.onnx"
    path.write_bytes(graph_with_data_apart(str(outside) if location == "SECRET" else location))
    with pytest.raises(EnginewrightError, match="is not a valid ONNX file") as caught:
        load_graph(path)
    assert "\n" not in str(caught.value)


def test_a_folder_of_data_that_is_a_link_is_refused(outside):
    folder = outside.parent / "project"
    (folder / "sub").symlink_to(outside.parent)
    (folder / "model.onnx").write_bytes(graph_with_data_apart("sub/secret"))
    with pytest.raises(EnginewrightError):
        load_graph(folder / "model.onnx")


@pytest.mark.parametrize(
    "changes", [{"offset": "-4"}, {"length": "99999999"}, {"offset": "9" * 30}, {"length": "-1"}, {"offset": "x"}]
)
def test_a_wrong_place_in_the_data_is_refused(outside, changes):
    model = onnx.ModelProto.FromString(graph_with_data_apart("weights"))
    for entry in model.graph.initializer[0].external_data:
        entry.value = changes.get(entry.key, entry.value)
    folder = outside.parent / "project"
    (folder / "weights").write_bytes(VALUES)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(EnginewrightError, match="is not a valid ONNX file"):
        load_graph(folder / "model.onnx")


def test_data_in_the_folder_is_read(outside):
    folder = outside.parent / "project"
    (folder / "weights").write_bytes(VALUES)
    (folder / "model.onnx").write_bytes(graph_with_data_apart("weights"))
    tensor = load_graph(folder / "model.onnx").graph.initializer[0]
    assert (tensor.raw_data, tensor.data_location) == (VALUES, TensorProto.DEFAULT)
