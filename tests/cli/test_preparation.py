"""`enginewright new` says how samples become tensors, and where it has that from: it guesses nothing in silence."""

import json
import re
import subprocess

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from PIL import Image
from support.command import enginewright, on_a_terminal
from support.paths import ROOT

from enginewright.cli.preparation import of_factory, of_onnx, of_torchvision
from enginewright.core.params.all import Params

# What `new` asks of timm 1.0.31, which is installed on few machines.
TIMM = """
from types import SimpleNamespace

CONFIG = {
    "input_size": (3, 288, 288), "crop_pct": 0.95, "interpolation": "bicubic", "crop_mode": "center",
    "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1),
}


def list_models():
    return ["resnet50"]


def is_model(name):
    return name.partition(".")[0] == "resnet50"


def get_pretrained_cfg(name):
    if name == "resnet50.lost":
        raise RuntimeError("Invalid pretrained tag (lost) for resnet50.")
    return SimpleNamespace(architecture="resnet50", tag="a1_in1k", to_dict=lambda: CONFIG)
"""
TIMM_DATA = """
def resolve_data_config(args=None, pretrained_cfg=None, model=None):
    return dict(pretrained_cfg)
"""
CLIP = {
    "do_center_crop": True, "crop_size": {"height": 224, "width": 224}, "size": {"shortest_edge": 224}, "resample": 3,
    "image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28], "rescale_factor": 0.00392156862745098,
}  # fmt: skip
USUAL = "color rgb, divide_by 255, mean [0.485, 0.456, 0.406], std [0.229, 0.224, 0.225]"


@pytest.fixture
def repository(tmp_path):
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".dvc").mkdir()  # so that DVC, of which no test here tells, is not started for each of them
    for name in ("nets", "others"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('no code of the user runs')\n\n\ndef small(): ...\n")
    (tmp_path / "photos").mkdir()
    for number in range(12):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / f"photos/{number}.png")
    return tmp_path


def laid_out(repository, *arguments, **environment):
    """Return what is said of params.yaml, and the parameters."""
    done = enginewright("new", *map(str, arguments), cwd=repository, **environment)
    assert done.returncode == 0, done.stderr
    said = re.search(r"set in params\.yaml:\n((?:  .*\n)+)", done.stdout)
    return said[1].splitlines() if said else [], Params.read(repository / "params.yaml")


def with_timm(repository):
    (repository / "site/timm").mkdir(parents=True)
    for name, text in {"__init__": TIMM, "data": TIMM_DATA}.items():
        (repository / f"site/timm/{name}.py").write_text(text)
    return {"PYTHONPATH": f"{repository / 'site'}:{ROOT}"}


def line_of(repository, key):
    lines = (repository / "params.yaml").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.startswith(f"    {key}:"))


def test_timm_knows_how_its_models_want_images(repository):
    said, params = laid_out(repository, "--model", "timm:resnet50", "--images", "photos", **with_timm(repository))
    assert said == [
        "  resize 303, resize_mode shorter_side, crop 288, interpolation bicubic, color rgb, divide_by 255, "
        "mean [0.5, 0.4, 0.3], std [0.2, 0.2, 0.1]: from timm's configuration of resnet50.a1_in1k"
    ]
    how = params.samples.preprocessing
    assert (how.resize, how.crop, how.interpolation, how.mean) == ((303, 303), (288, 288), "bicubic", (0.5, 0.4, 0.3))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("resnet51", "timm has no model 'resnet51'; did you mean 'resnet50'?"),
        ("resnet50.lost", "timm's resnet50.lost: Invalid pretrained tag (lost) for resnet50."),
    ],
)
def test_a_name_that_timm_does_not_know_is_refused(repository, name, sentence):
    done = enginewright("new", "--model", f"timm:{name}", cwd=repository, **with_timm(repository))
    assert (done.returncode, done.stdout) == (1, "")
    assert sentence in done.stderr


def test_other_weights_and_another_size_are_told(repository):
    (repository / "best.pt").touch()
    given = ("--model", "timm:resnet50", "--weights", "best.pt", "--size", 144)
    said, params = laid_out(repository, *given, **with_timm(repository))
    assert said[0] == "  resize 151, crop 144: from --size"
    assert said[1].endswith("of resnet50.a1_in1k; look whether yours were trained so")
    assert params.samples.preprocessing.crop == (144, 144)


def test_a_folder_of_transformers_says_how_it_wants_images(repository):
    (repository / "clip").mkdir()
    (repository / "clip/preprocessor_config.json").write_text(json.dumps(CLIP))
    said, params = laid_out(repository, "--model", "transformers:clip", "--images", "photos")
    assert said == [
        "  resize 224, resize_mode shorter_side, crop 224, interpolation bicubic, color rgb, divide_by 255, "
        "mean [0.48, 0.46, 0.41], std [0.27, 0.26, 0.28]: from clip/preprocessor_config.json"
    ]
    assert params.samples.preprocessing.std == (0.27, 0.26, 0.28)


def test_a_folder_of_transformers_brings_its_tokenizer(repository):
    (repository / "bert").mkdir()
    for name, content in {"config.json": {"max_position_embeddings": 64}, "tokenizer.json": {}}.items():
        (repository / "bert" / name).write_text(json.dumps(content))
    (repository / "texts.csv").write_text("text\nhello\n")
    said, params = laid_out(repository, "--model", "transformers:bert", "--images", "texts.csv")
    assert said == [
        "  samples.preprocessing null, samples.text.tokenizer data/texts/tokenizer.json, samples.text.longest 64: "
        "from bert, whose model reads texts"
    ]
    assert (params.samples.source, params.samples.preprocessing) == ("data/texts/texts.csv", None)
    assert (params.samples.text.longest, params.build.profile.axes["sequence"].max) == (64, 64)
    assert (repository / "data/texts/tokenizer.json").is_file()


def test_texts_are_not_taken_for_images(repository):
    """Only a folder of transformers says how its texts become tokens."""
    (repository / "pairs.csv").write_text("text_a,text_b,score\nhello,hi,1\n")
    done = enginewright("new", "--model", "nets:small", "--images", "pairs.csv", cwd=repository)
    assert done.stderr == (
        "enginewright: --images pairs.csv holds texts: leave it out, and see docs/how-to/data.md on texts\n"
    )
    assert not (repository / "dvc.yaml").exists()


@pytest.mark.parametrize("task", ["detection", "segmentation"])
def test_images_are_taken_whole_where_places_count(repository, task):
    said, params = laid_out(repository, "--model", "nets:small", "--images", "photos", "--size", "96", "--task", task)
    assert said[:2] == [
        "  resize 96, crop 96: from --size",
        "  resize_mode stretch: from the task, which is about whole images",
    ]
    assert (params.samples.preprocessing.resize, params.samples.preprocessing.crop) == ((96, 96), (96, 96))


def test_torchvision_publishes_how_its_weights_want_images():
    stated = of_torchvision("resnet50")
    assert (stated.values["resize"], stated.values["crop"], stated.values["mean"]) == (232, 224, [0.485, 0.456, 0.406])
    assert of_torchvision("deeplabv3_resnet50").values["crop"] == 520
    assert of_torchvision("ssd300_vgg16").values == of_torchvision("squeezenet1_").values == {}


def test_a_factory_says_it_itself(repository):
    with (repository / "nets.py").open("a") as file:
        file.write("small.preprocessing = {'crop': 96, 'color': 'bgr', 'mean': [0, 0, 0], 'std': [1, 1, 1]}\n")
    said, params = laid_out(repository, "--model", "nets:small", "--images", "photos")
    lines = ", ".join(str(line_of(repository, key)) for key in ("resize", "interpolation", "divide_by"))
    assert said == [
        "  resize 109, interpolation bilinear, divide_by 255: a guess, as nets:small.preprocessing does not say: "
        f"check lines {lines}",
        "  crop 96, color bgr, mean [0, 0, 0], std [1, 1, 1]: from nets:small.preprocessing",
    ]
    assert params.samples.preprocessing.color == "bgr"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("class Net:\n    preprocessing = {'crop': 64}\n", {"crop": 64}),
        ("class Net:\n    preprocessing: dict = {'crop': 64}\n", {"crop": 64}),
        ("def Net(): ...\nNet.preprocessing = None\n", None),
        ("def Net(): ...\nOther.preprocessing = {'crop': 64}\n", {}),
        ("no Python", {}),
    ],
)
def test_a_factory_is_read_and_not_run(tmp_path, text, values):
    (tmp_path / "nets.py").write_text(text)
    assert of_factory("nets:Net", tmp_path / "nets.py").values == values


def test_what_a_factory_says_must_be_written_out_and_possible(repository):
    for text, sentence in {
        "small.preprocessing = dict(mean=MEAN)": "nets.py, line 5: preprocessing must be written out, as a dict",
        "small.preprocessing = {'crop': 'large'}": "nets:small.preprocessing: crop: write one number",
        "small.preprocessing = {'crop': (9, 9, 9)}": "crop: write one number",
        "small.preprocessing = {'means': [1, 1, 1]}": "means is not a parameter; did you mean 'mean'?",
    }.items():
        (repository / "nets.py").write_text(f"\n\n\ndef small(): ...\n{text}\n")
        done = enginewright("new", "--model", "nets:small", "--size", "32", cwd=repository)
        assert (done.returncode, sentence in done.stderr) == (1, True), done.stderr


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        (["n", 3, 64, 64], {"layout": "nchw", "crop": 64}),
        (["n", 48, 64, 1], {"layout": "nhwc", "color": "grey", "crop": [48, 64]}),
        (["n", 3, "h", "w"], {"layout": "nchw"}),
        (["n", 16], None),
    ],
)
def test_an_onnx_file_gives_the_name_and_the_size_of_its_input(tmp_path, shape, values):
    info = helper.make_tensor_value_info("pixels", TensorProto.FLOAT, shape)
    out = helper.make_tensor_value_info("out", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Relu", ["pixels"], ["out"])], "net", [info], [out])
    onnx.save(helper.make_model(graph), tmp_path / "net.onnx")
    stated = of_onnx(tmp_path / "net.onnx")
    assert (stated.input, stated.values) == ("pixels", values)


@pytest.mark.parametrize(
    ("name", "arrays", "is_pixels"),
    [
        ("waves.npz", {"wave": np.zeros((12, 16), np.float32), "labels": np.zeros(12, np.int64)}, False),
        ("waves.npy", np.zeros((12, 16), np.float32), False),
        ("photos.npz", {"images": np.zeros((12, 8, 8, 3), np.uint8)}, True),
        ("photos.npy", np.zeros((12, 8, 8), np.uint8), True),
        ("rows.npy", np.zeros((12, 7), np.uint8), True),  # which the stage `samples` refuses
        ("planes.npy", np.zeros((12, 3, 8, 8), np.uint8), True),
    ],
)
def test_arrays_that_are_no_pixels_are_taken_as_they_are(repository, name, arrays, is_pixels):
    np.savez(repository / name, **arrays) if isinstance(arrays, dict) else np.save(repository / name, arrays)
    said, params = laid_out(repository, "--model", "nets:small", "--images", name)
    assert (params.samples.preprocessing is not None) == is_pixels
    assert (params.samples.source, params.samples.validation, params.samples.calibration) == (
        f"data/images/{name}",
        6,
        3,
    )
    assert (params.build.pixels == "nchw") == is_pixels
    assert is_pixels or said == [
        f"  samples.preprocessing null: {name} holds arrays, which are fed as they are, and no pixels in uint8"
    ]


def test_a_file_that_is_no_numpy_file_is_refused(repository):
    for name in ("broken.npz", "broken.npy"):
        (repository / name).write_bytes(b"nothing")
        done = enginewright("new", "--images", name, cwd=repository)
        assert (done.returncode, f"--images {name} cannot be read as a NumPy file" in done.stderr) == (1, True)


def test_what_nothing_says_is_asked_for_at_a_terminal(repository):
    given = ("--model", "nets:small", "--images", "photos")
    typed = "96\nrbg\nbgr\n\nhalf\n0.5, 0.5, 0.5\n\n"
    said = on_a_terminal("new", *given, cwd=repository, typed=typed, NO_COLOR="1").replace("\r\n", "\n")
    assert "size of the images that the model takes, in pixels [8]: " in said
    assert "mean per channel, after that [0.406, 0.456, 0.485]: " in said
    assert "not understood; mean per channel" in said
    assert "color: input should be 'rgb', 'bgr' or 'grey'" in said
    assert (
        "  crop 96, color bgr, divide_by 255, mean [0.5, 0.5, 0.5], std [0.225, 0.224, 0.229]: as you answered" in said
    )
    how = Params.read(repository / "params.yaml").samples.preprocessing
    assert (how.crop, how.color, how.mean, how.std) == ((96, 96), "bgr", (0.5, 0.5, 0.5), (0.225, 0.224, 0.229))
    again = on_a_terminal("new", *given, cwd=repository, typed="", NO_COLOR="1")
    assert "that the model takes" not in again, "params.yaml is there, and stays"


@pytest.mark.parametrize(
    ("sizes", "preprocessing", "crop", "resize"),
    [
        ([(48, 48)], {}, 48, 48),
        ([(64, 48)], {}, [48, 64], [48, 64]),
        ([(48, 48), (64, 48)], {}, 224, 256),
        ([(4000, 3000)], {}, 224, 256),
        ([(48, 48)], {"crop": 32}, 32, 36),
        ([(48, 48)], {"resize": 40}, 40, 40),
    ],
)
def test_images_of_one_size_are_taken_whole_where_the_model_states_none(repository, sizes, preprocessing, crop, resize):
    with (repository / "nets.py").open("a") as file:
        file.write(f"small.preprocessing = {preprocessing}\n" if preprocessing else "")
    for number, image in enumerate((repository / "photos").iterdir()):
        Image.new("RGB", sizes[number % len(sizes)]).save(image)
    (repository / "photos/broken.png").write_text("no image")
    said, params = laid_out(repository, "--model", "nets:small", "--images", "photos")
    how = params.samples.preprocessing
    assert [list(each) if each[0] != each[1] else each[0] for each in (how.crop, how.resize)] == [crop, resize]
    guessed = any("a guess, as the images have this size" in line for line in said)
    assert guessed == (len(sizes) == 1 and sizes[0][0] < 100 and not preprocessing)


@pytest.mark.parametrize("folder", [".", "data/images"])
def test_the_rows_of_a_table_are_divided_and_its_images_asked_for_where_they_are_not(repository, folder):
    place = repository / folder
    place.mkdir(parents=True, exist_ok=True)
    (place / "table.csv").write_text("path\n" + "".join(f"photos/{number}.png\n" for number in range(12)))
    if place != repository:
        (repository / "photos").rename(place / "photos")
    said, params = laid_out(repository, "--model", "nets:small", "--images", f"{folder}/table.csv")
    assert (params.samples.validation, params.samples.calibration) == (6, 3)
    asked = "  samples.source data/images/table.csv: put the images that it names beside it"
    assert (asked in said) == (place == repository)


def test_without_a_terminal_a_guess_is_told_with_its_lines(repository):
    said, params = laid_out(repository, "--model", "others:small", "--images", "photos", "--size", "64")
    keys = ("interpolation", "color", "divide_by", "mean", "std")
    lines = ", ".join(str(line_of(repository, key)) for key in keys)
    assert said == [
        "  resize 73, crop 64: from --size",
        f"  interpolation bilinear, {USUAL}: a guess, as nothing says how the model was trained: check lines {lines}",
    ]
    assert params.samples.preprocessing.mean == (0.485, 0.456, 0.406)
