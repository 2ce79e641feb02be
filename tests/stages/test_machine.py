"""The first stage refuses what later stages would fail at after hours, and finds the files of the user's own model."""

from pathlib import Path

import pytest
from support.params import written

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import sha256
from enginewright.core.params.all import Params
from enginewright.engine import runtimes
from enginewright.pipeline.dependencies import StageCode
from enginewright.pipeline.machine import MachinePaths, machine

FOLDERS = ("data/models", "data/weights", "data/calibration", "data/plugins", "cures", "tuned")
RECORDS = (
    "machine.json",
    "target.json",
    "dialect.json",
    "tools.json",
    "task.json",
    "cures.json",
    "tuning",
    "code",
    "parameters",
)
ONNX = {"weights.source": "given", "benchmark.baselines": ["onnxruntime"]}
USER_FILES = [
    ({"weights.source": "data/weights/net.pt"}, "weights.source", "train, pretrained, given"),
    ({"model.source": "data/models/net.onnx", **ONNX}, "model.source", "a torchvision model"),
    ({"calibration.file": "data/calibration/cache"}, "calibration.file", "null"),
    ({"build.tensorrt.plugins": ["data/plugins/x.so"]}, "build.tensorrt.plugins", "[]"),
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the stage under changed parameters."""
    monkeypatch.chdir(tmp_path)
    for folder in FOLDERS:
        Path(folder).mkdir(parents=True)

    def run(changes):
        written(tmp_path, {"runtime": "openvino", **changes})
        machine(Params.read(), MachinePaths(*map(Path, (*FOLDERS, *RECORDS))))

    return run


@pytest.mark.parametrize(("changes", "setting", "instead"), USER_FILES, ids=[setting for _, setting, _ in USER_FILES])
def test_a_missing_file_is_refused_before_anything_is_made(run, changes, setting, instead):
    path = changes[setting][0] if isinstance(changes[setting], list) else changes[setting]
    with pytest.raises(EnginewrightError) as caught:
        run(changes)
    folder = Path(path).parent.as_posix()
    assert str(caught.value) == f"{setting}: {path} does not exist; give {instead} or a path in {folder}/"
    assert not any(Path(name).exists() for name in RECORDS)
    Path(path).write_bytes(b"")
    run(changes)
    assert all(Path(name).exists() for name in RECORDS)


def test_a_file_that_the_arguments_name_is_part_of_the_models_code(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    Path("configured_net.py").write_text("def network(config): ...\n")
    Path("net.json").write_text("{}")
    arguments = {"config": "net.json"}
    changes = {"model.source": "configured_net:network", "model.arguments": arguments, "weights.source": "given"}
    found = []
    for text in ("{}", '{"width": 8}'):
        Path("net.json").write_text(text)
        run(changes)
        found.append(StageCode.read(Path("code/weights.json")).model)
    assert [set(files) for files in found] == [{"configured_net.py", "net.json"}] * 2
    assert found[0]["net.json"] != found[1]["net.json"] == sha256(Path("net.json"))


@pytest.mark.parametrize("source", ["train", "pretrained"])
def test_weights_that_are_no_file_are_not_looked_for(run, source):
    run({"weights.source": source})
    assert all(Path(name).exists() for name in RECORDS)


def test_another_processor_or_version_of_the_runtime_changes_only_what_engines_and_timings_follow(
    run, tmp_path, monkeypatch
):
    run({})
    contents = [files()]
    about = tmp_path / "site/openvino-9.9.9.dist-info/METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: openvino\nVersion: 9.9.9\n")
    with monkeypatch.context() as changed:
        changed.syspath_prepend(tmp_path / "site")
        run({})
        contents.append(files())
    hardware = runtimes.find_cpu()
    monkeypatch.setattr(runtimes, "find_cpu", lambda: hardware._replace(device_name="Another Processor"))
    run({})
    contents.append(files())
    for there in contents[1:]:
        assert {file for file in there if there[file] != contents[0][file]} == {
            Path("machine.json"),
            Path("target.json"),
        }


def files():
    return {
        file: file.read_bytes() for name in RECORDS for file in (Path(name), *Path(name).rglob("*")) if file.is_file()
    }
