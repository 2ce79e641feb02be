"""Files that params.yaml names: one that is not there is refused by the first stage, not by the one that reads it."""

from pathlib import Path

import pytest
from support.params import written

from enginery.core.errors import EngineryError
from enginery.core.files import sha256
from enginery.pipeline.code import StageCode
from stages.machine import machine

FOLDERS = ("data/models", "data/weights", "data/calibration")
RECORDS = ("machine.json", "target.json", "dialect.json", "tools.json", "code.json")
ONNX = {"weights.source": "given", "benchmark.baselines": ["onnxruntime"]}
BROUGHT = [
    ({"weights.source": "data/weights/net.pt"}, "weights.source", "train, pretrained, given"),
    ({"model.source": "data/models/net.onnx", **ONNX}, "model.source", "a torchvision classifier"),
    ({"calibration.file": "data/calibration/cache"}, "calibration.file", "null"),
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The stage under changed parameters; returns what it wrote."""
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        Path(folder).mkdir(parents=True)

    def run(changes):
        written(tmp_path, {"runtime": "openvino", **changes})
        machine(*map(Path, FOLDERS), *map(Path, RECORDS))

    return run


@pytest.mark.parametrize(("changes", "setting", "instead"), BROUGHT, ids=[setting for _, setting, _ in BROUGHT])
def test_a_missing_file_is_refused_before_anything_is_made(run, changes, setting, instead):
    path = changes[setting]
    with pytest.raises(EngineryError) as caught:
        run(changes)
    folder = Path(path).parent.as_posix()
    assert str(caught.value) == f"{setting}: {path} does not exist; give {instead} or a path in {folder}/"
    assert not any(Path(name).exists() for name in RECORDS)
    Path(path).write_bytes(b"")
    run(changes)
    assert all(Path(name).exists() for name in RECORDS)


def test_a_file_that_the_factory_is_told_to_read_is_part_of_its_code(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    Path("told_net.py").write_text("def network(config): ...\n")
    Path("net.json").write_text("{}")
    named = {"model.source": "told_net:network", "model.arguments": {"config": "net.json"}, "weights.source": "given"}
    found = []
    for text in ("{}", '{"width": 8}'):
        Path("net.json").write_text(text)
        run(named)
        found.append(StageCode.read(Path("code/weights.json")).model)
    assert [set(files) for files in found] == [{"told_net.py", "net.json"}] * 2
    assert found[0]["net.json"] != found[1]["net.json"] == sha256(Path("net.json"))


@pytest.mark.parametrize("source", ["train", "pretrained"])
def test_weights_that_are_no_file_are_not_looked_for(run, source):
    run({"weights.source": source})
    assert all(Path(name).exists() for name in RECORDS)
