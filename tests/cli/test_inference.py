"""`enginewright infer`: its answers, and what it feeds the engine."""

import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from support.command import ROOT, enginewright, on_a_terminal
from support.warm_python import warm_python

from enginewright.cli.commands.infer import (
    ImageReader,
    batch_size,
    find_images,
    find_texts,
    picture_files,
    require_readable,
)
from enginewright.core.errors import EnginewrightError
from enginewright.engine.build import DescribedGraph, build_engine
from enginewright.engine.engine import open_engine
from enginewright.engine.machine import target_of
from enginewright.engine.record import read_engine
from enginewright.graph.onnx_file import load_graph, save_graph
from enginewright.graph.pixels import take_pixels

NOBODY = 65534


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Return seven pictures of noise in two class folders, in other sizes and modes than the engine takes."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(5)
    for number, (shape, suffix) in enumerate(
        [((9, 20, 3), "png"), ((31, 12, 3), "jpg"), ((8, 8), "png"), ((50, 50, 4), "png"), ((10, 11, 3), "bmp")] * 2
    ):
        place = folder / f"class {number % 2}" / "deeper"
        place.mkdir(parents=True, exist_ok=True)
        if number < 7:
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(place / f"{number}.{suffix}")
    return folder


@pytest.fixture(scope="module")
def images(photos):
    return sorted(path for path in photos.rglob("*") if path.is_file())


class Recorder:
    """An engine that remembers what it was fed."""

    def __init__(self, engine):
        self.record, self._engine, self.fed = engine.record, engine, []

    def run(self, feeds):
        self.fed += feeds.values()
        return self._engine.run(feeds)


@pytest.mark.parametrize("pixels", [None, "nchw", "nhwc"])
def test_the_engine_is_fed_the_very_tensor_that_validation_fed_it(
    built, tiny_onnx, machine, manifest, inference, images, photos, validated, tmp_path, pixels
):
    if pixels:
        how, build = validated.manifest.preprocessing, read_engine(built).build.model_copy(update={"pixels": pixels})
        save_graph(take_pixels(load_graph(tiny_onnx), how, pixels), tmp_path / "model.onnx")
        built, validated = tmp_path / "engine", validated.fed_to(build)
        graph = DescribedGraph("fp32", tmp_path / "model.onnx", manifest)
        build_engine(graph, target_of(machine, build.tensorrt), build, built)
    with open_engine(built, machine, inference) as engine:
        recorder = Recorder(engine)
        answers = list(ImageReader(recorder, built).answer(images, top=1))
    (fed,) = recorder.fed
    order = [sample.name for sample in validated.manifest.samples]
    wanted = validated.cycled(7)["input"][[order.index(path.relative_to(photos).as_posix()) for path in images]]
    assert fed.dtype == wanted.dtype
    assert np.array_equal(fed, wanted)
    assert [answer.given for answer in answers] == images


def test_the_best_classes_come_with_their_probabilities(built, images, photos, expected):
    done = enginewright("infer", built, *images, "--top", 3, "--json", "--threads", 1)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["image"] for line in lines] == [str(path) for path in images]
    for path, line in zip(images, lines, strict=True):
        logits = expected[path.relative_to(photos).as_posix()].astype(np.float64)
        odds = np.exp(logits) / np.exp(logits).sum()
        order = np.argsort(-odds)[:3]
        assert [guess["index"] for guess in line["top"]] == order.tolist()
        assert [guess["class"] for guess in line["top"]] == [f"class {index}" for index in order]
        assert [guess["probability"] for guess in line["top"]] == pytest.approx(odds[order].tolist(), abs=1e-5)


def test_a_folder_stands_for_all_images_below_it(built, photos, images):
    done = enginewright("infer", built, photos, "--top", 1)
    assert (done.returncode, done.stderr) == (0, "")
    rows = done.stdout.splitlines()
    assert [row.split("   ")[0].strip() for row in rows] == [str(path) for path in images]
    assert all(row.endswith("%") for row in rows)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_the_batch_size_changes_no_answer(built, photos, size):
    """The engine takes 2 to 8: a batch of one is filled up, and so is the last one."""
    whole, parts = (enginewright("infer", built, photos, "--json", *more) for more in ((), ("--batch", size)))
    assert parts.returncode == 0
    for one, other in zip(whole.stdout.splitlines(), parts.stdout.splitlines(), strict=True):
        one, other = json.loads(one), json.loads(other)
        assert one["image"] == other["image"]
        assert [guess["class"] for guess in one["top"]] == [guess["class"] for guess in other["top"]]


def test_by_default_batches_are_as_large_as_the_engine_takes(built, machine, inference):
    with open_engine(built, machine, inference) as engine:
        assert batch_size(engine.record, None) == 8


def test_a_broken_image_is_named_and_the_others_are_answered(built, images, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    (tmp_path / "cut.jpg").write_bytes(images[0].read_bytes()[:60])
    broken = [tmp_path / "text.png", tmp_path / "nothing.png", tmp_path / "cut.jpg"]
    done = enginewright("infer", built, broken[0], images[0], *broken[1:], images[1], "--top", 1)
    assert done.returncode == 5
    assert [row.split("   ")[0].strip() for row in done.stdout.splitlines()] == [str(path) for path in images[:2]]
    *named, total = done.stderr.splitlines()
    assert [line.split()[0] for line in named] == list(map(str, broken))
    assert named[0].startswith(f"{broken[0]} is not an image that can be decoded: ")
    assert named[1] == f"{broken[1]} does not exist"
    assert total == "could not be read: 3 of 5 images"


def test_a_broken_image_has_a_line_of_json(built, images, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    done = enginewright("infer", built, tmp_path / "text.png", images[0], "--json")
    assert done.returncode == 5
    first, second = map(json.loads, done.stdout.splitlines())
    assert first.keys() == {"image", "error"}
    assert "is not an image that can be decoded" in first["error"]
    assert second.keys() == {"image", "top"}


def test_only_broken_images_are_no_crash(built, tmp_path):
    (tmp_path / "text.png").write_text("no picture")
    done = enginewright("infer", built, tmp_path / "text.png")
    assert (done.returncode, done.stdout) == (5, "")
    assert done.stderr.splitlines()[-1] == "could not be read: 1 of 1 images"


def refused(*arguments, **more):
    done = enginewright("infer", *arguments, **more)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith("enginewright: ")
    return line


def test_an_empty_folder_is_a_sentence(built, tmp_path):
    os.mkfifo(tmp_path / "pipe.png")  # which nobody writes into
    (tmp_path / "notes.txt").write_text("no picture")
    assert f"{tmp_path} holds no images: looked for .avif, .bmp" in refused(built, tmp_path)


def test_a_batch_that_the_engine_does_not_take_is_a_sentence(built, images):
    assert "--batch 1000000 is more than the engine takes: 8" in refused(built, images[0], "--batch", 1000000)


@pytest.mark.parametrize("wrong", ["0", "-1", "many"])
@pytest.mark.parametrize("option", ["--batch", "--top", "--threads"])
def test_a_senseless_number_is_a_mistake_of_the_command_line(built, images, option, wrong):
    done = enginewright("infer", built, images[0], option, wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"argument {option}: " in done.stderr


def test_more_classes_than_there_are_is_all_of_them(built, images):
    done = enginewright("infer", built, images[0], "--top", 1000, "--json")
    assert len(json.loads(done.stdout)["top"]) == 16


def test_a_folder_that_is_no_engine_is_a_sentence_with_a_suggestion(built, images):
    absent = built.with_name("fp23")
    assert f"there is no engine {absent}; did you mean {built}?" in refused(absent, images[0])
    assert "is not an engine's folder" in refused(images[0].parent, images[0])


def test_a_damaged_engine_is_not_loaded(built, images, tmp_path):
    copy = shutil.copytree(built, tmp_path / "engine")
    blob = copy / "engine.blob"
    blob.write_bytes(blob.read_bytes()[:-1])
    assert "engine.blob is damaged: its hash differs" in refused(copy, images[0])


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"cores": 640}, "was built for another machine: cores 640 there and "),
        ({"runtime": "tensorrt", "device": "cuda"}, "runs on tensorrt, but TensorRT is not installed: pip install"),
    ],
)
def test_an_engine_of_another_machine_is_a_sentence(built, images, tmp_path, change, wanted):
    copy = shutil.copytree(built, tmp_path / "engine")
    record = json.loads((copy / "engine.json").read_text())
    record["target"] |= change
    (copy / "engine.json").write_text(json.dumps(record))
    assert wanted in refused(copy, images[0])


def test_an_engine_that_is_no_classifier_of_images_is_refused(built, machine, inference):
    with open_engine(built, machine, inference) as engine:
        record = engine.record
    inputs = record.interface.inputs * 2
    pair = record.model_copy(update={"interface": record.interface.model_copy(update={"inputs": inputs})})
    refused = "its task, classification, needs an output that it can read, and for images one input, and it has input"
    with pytest.raises(EnginewrightError, match=refused):
        require_readable(pair, built)
    with pytest.raises(EnginewrightError, match="has no answers to show"):
        require_readable(record.model_copy(update={"scores": "none"}), built)
    interface = record.interface
    varying = interface.outputs[0].model_copy(update={"shape": ("batch", "height//8")})
    pieces = record.model_copy(update={"interface": interface.model_copy(update={"outputs": (varying,)})})
    with pytest.raises(EnginewrightError, match="has no answers to show"):
        require_readable(pieces, built)


def test_scores_that_are_no_numbers_are_an_error(built, machine, inference, images):
    class Spoiled(Recorder):
        def run(self, feeds):
            return {name: array * np.nan for name, array in super().run(feeds).items()}

    with open_engine(built, machine, inference) as engine, pytest.raises(EnginewrightError, match="are not all finite"):
        list(ImageReader(Spoiled(engine), built).answer(images, top=1))


def test_neither_torch_nor_pandas_is_loaded(built, images):
    program = (
        "import sys; from enginewright.cli.main import build_parser\n"
        f"chosen = build_parser(['infer']).parse_args(['infer', {str(built)!r}, {str(images[0])!r}])\n"
        "chosen.run(chosen)\n"
        "print(*sorted({'torch', 'torchvision', 'pandas', 'sklearn', 'openvino'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "openvino"


def test_a_bar_is_drawn_only_where_it_is_not_between_answers(built, photos):
    assert "batches" not in on_a_terminal("infer", built, photos)
    assert "batches" in on_a_terminal("infer", built, photos, both=False)
    assert "batches" not in enginewright("infer", built, photos).stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_a_folder_that_may_not_be_read_is_a_sentence(built):
    """root may read everything, so the process becomes that of nobody after its imports."""
    program = (
        "import os, sys, enginewright.cli.commands.infer\n"
        "from enginewright.cli.main import build_parser, main; build_parser()\n"
        f"os.setuid({NOBODY}); sys.argv[0] = 'infer'; sys.argv.insert(0, 'enginewright'); main()"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        engine, locked = shutil.copytree(built, Path(folder) / "engine"), Path(folder) / "locked"
        engine.chmod(0o755)
        locked.mkdir(mode=0)
        command = [warm_python() / "python3", "-c", program, str(engine), str(locked)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"enginewright: {locked}: Permission denied\n"


@pytest.mark.parametrize(
    ("given", "content", "found"),
    [
        ("-", b"a.png\n\nb c.png\n", ["a.png", "b c.png"]),
        ("-", b"\n", "standard input, which - stands for, has no lines"),
        ("-", b"\xff\n", "standard input is no text in UTF-8"),
        ("\udcff", b"", "'.udcff' is no text in UTF-8"),
        (" ", b"", "one of the texts is empty: leave it out"),
    ],
)
def test_standard_input_names_images_or_holds_texts(given, content, found, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), "utf-8"))
    if isinstance(found, str):
        with pytest.raises(EnginewrightError, match=found):
            find_texts([given], SimpleNamespace(together=1))
    else:
        assert find_images([Path(given)]) == list(map(Path, found))


@pytest.mark.parametrize("folder", ["sub", "."])
def test_pictures_are_written_over_no_image_that_was_given(folder, tmp_path):
    images = [tmp_path / "a.jpg", tmp_path / "sub" / "a.jpg"]
    with pytest.raises(EnginewrightError, match="holds the images themselves: give another folder"):
        picture_files(images, tmp_path / folder)
