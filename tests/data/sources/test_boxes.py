"""Known boxes in COCO's JSON and in YOLO's folders: what is read, and how broken annotations are named."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import Preprocessing, SamplesParams
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources import open_source
from enginewright.data.splits import write_split
from enginewright.tasks.choose import known_of

WIDTH, HEIGHT = 80, 40
HOW = Preprocessing(resize=20, resize_mode="stretch", crop=20, interpolation="nearest", mean=(0, 0, 0), std=(1, 1, 1))
DATA = Path("data/images")
DOCUMENT = {
    "images": [{"id": each, "file_name": f"{each}.png", "width": WIDTH, "height": HEIGHT} for each in (7, 3)],
    "annotations": [
        {"id": 1, "image_id": 3, "category_id": 90, "bbox": [8, 4, 16, 8], "iscrowd": 0},
        {"id": 2, "image_id": 3, "category_id": 5, "bbox": [0, 0, 80, 40], "iscrowd": 1},
    ],
    "categories": [{"id": 90, "name": "dog"}, {"id": 5, "name": "cat"}],
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for place in ("pets", "yolo/images"):
        (DATA / place).mkdir(parents=True)
        for name in (3, 7):
            Image.new("RGB", (WIDTH, HEIGHT)).save(DATA / place / f"{name}.png")
    (DATA / "yolo/labels").mkdir()


def params_of(source, **more):
    return SamplesParams(source=str(DATA / source), seed=0, validation=1, training=0, calibration=1, **more)


def opened(source, how=HOW, **more):
    """Return names of the classes, and each sample's name and boxes, by way of the folder of a split."""
    params = params_of(source, preprocessing=how, **more)
    found = open_source(params, DATA, known_of("detection"))
    write_split(found, range(len(found)), params, Path("split"), "detection")
    samples = SampleSet.open(Path("split"))
    truth = samples.truth
    names = [sample.name for sample in samples.manifest.samples]
    return found.class_names, {
        name: truth[place].round(9).tolist() for place, name in enumerate(names)
    } if truth is not None else None


def write_coco(document=DOCUMENT, file="pets/annotations.json", indent=1):
    (DATA / file).write_text(document if isinstance(document, str) else json.dumps(document, indent=indent))


def write_yolo(labels=None, **files):
    for name, text in (labels or {"3": "1 0.2 0.2 0.2 0.2\n", "7": ""}).items():
        (DATA / f"yolo/labels/{name}.txt").write_text(text)
    for name, text in files.items():
        (DATA / "yolo" / name.replace("_", ".")).write_text(text)


DOG, CROWD, NONE = [1, 2, 2, 6, 6, 0], [0, 0, 0, 20, 20, 1], [-1] * 6


@pytest.mark.parametrize("file", ["pets/annotations.json", "pets.json"])
def test_annotations_as_coco_has_them_are_scaled_with_their_images(file, capsys):
    write_coco(file=file)
    shutil.copy(DATA / "pets/3.png", DATA / "pets/more.png")
    source = "pets" if file.startswith("pets/") else file
    assert opened(source) == (("cat", "dog"), {"7.png": [NONE, NONE], "3.png": [DOG, CROWD]})
    told = f"MIND: images beside those in {DATA / file}, and not listed there, are left out: {DATA / 'pets/more.png'}\n"
    assert told in capsys.readouterr().out
    (DATA / "names.txt").write_text("dog\tHund\nbird\ncat\n")
    names, boxes = opened(source, class_names=str(DATA / "names.txt"))
    assert (names, boxes["3.png"][0][0]) == (("Hund", "bird", "cat"), 0)


def test_labels_as_yolo_has_them(capsys):
    write_yolo()
    assert opened("yolo") == (("0", "1"), {"images/3.png": [[1, 2, 2, 6, 6, 0]], "images/7.png": [NONE]})
    assert "MIND: data/images/yolo has no box of 1 of its 2 classes: 0" in capsys.readouterr().out
    for files in ({"classes_txt": "cat\ndog\n"}, {"data_yaml": "names: {1: dog, 0: cat}\n"}):
        write_yolo(**files)
        assert opened("yolo")[0] == ("cat", "dog")
        (DATA / "yolo" / next(iter(files)).replace("_", ".")).unlink()


def test_images_without_annotations_have_no_truth():
    (DATA / "yolo/labels").rmdir()
    assert opened("yolo", class_names=("cat",)) == (("cat",), None)


def test_a_box_that_the_crop_cuts_counts_if_enough_is_left():
    write_coco()
    middle = HOW.model_copy(update={"resize": (40, 80), "crop": (40, 40)})  # which begins at pixel 20
    assert opened("pets", middle)[1]["3.png"] == [[1, 0, 4, 4, 12, 0], [0, 0, 0, 40, 40, 1]]
    less = middle.model_copy(update={"crop": (40, 36)})  # of the dog's 16 pixels 2 are left
    assert opened("pets", less)[1]["3.png"][0] == [1, 0, 4, 2, 12, 2]
    none = middle.model_copy(update={"crop": (40, 32)})
    assert opened("pets", none)[1]["3.png"] == [[0, 0, 0, 32, 40, 1], NONE]


def test_boxes_of_arrays():
    boxes = np.array([[DOG, CROWD], [NONE, NONE]], float) * 1
    images = np.zeros((2, HEIGHT, WIDTH, 3), np.uint8)
    np.savez(DATA / "pets.npz", images=images, boxes=boxes)
    assert opened("pets.npz", class_names=("cat", "dog"))[1]["pets.npz/000000"][0] == [1, 0.5, 1, 1.5, 3, 0]


def changed(section, number, **fields):
    document = json.loads(json.dumps(DOCUMENT))
    document[section][number] |= fields
    return document


BOX = "line 1[0-9], entry 0 of annotations,"


@pytest.mark.parametrize(
    ("document", "told"),
    [
        ('{"images": [\n1,,', "pets/annotations.json, .*Invalid JSON: .* at line 2"),
        ([], "annotations.json, the document: Input should be an object"),
        (DOCUMENT | {"categories": []}, "annotations.json, categories: List should have at least 1 item"),
        (DOCUMENT | {"annotations": []}, "annotations.json has no box in any image, so nothing to find"),
        (changed("images", 1, id=7), "entry 1 of images, has the id 7 of another"),
        (changed("images", 1, file_name="9.png"), "entry 1 of images, names 9.png, which is not in data/images/pets"),
        (changed("categories", 0, name="cat"), "annotations.json names the class cat twice"),
        (changed("annotations", 0, image_id=8), f"{BOX} has the image_id 8, which is not among the images"),
        (changed("annotations", 0, category_id=8), f"{BOX} has the category_id 8, which is not among the categories"),
        (changed("annotations", 0, bbox=[1, 2, 3]), f"{BOX} annotations.0.bbox.3: Field required"),
        (changed("annotations", 0, bbox=[1, 2, 3, 0]), f"{BOX} has a box of 3 by 0, which is no area"),
        (
            changed("annotations", 0, bbox=[70, 2, 30, 5]),
            f"{BOX} has a box .* of 70 2 100 7, outside its image of 80 by 40",
        ),
        (changed("images", 1, width=81), "is of an image of 81 by 40 pixels, and the file has 80 by 40"),
    ],
)
def test_broken_annotations_are_named_with_file_and_line(document, told):
    write_coco(document)
    with pytest.raises(EnginewrightError) as caught:
        opened("pets")
    assert re.search(told, str(caught.value)), str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_line_of_an_annotation_is_where_it_begins():
    write_coco(changed("annotations", 1, bbox=None))
    with pytest.raises(EnginewrightError, match="bbox: Input should be") as caught:
        opened("pets")
    line = int(re.search(r"line (\d+)", str(caught.value))[1])
    assert (DATA / "pets/annotations.json").read_text().splitlines()[line].strip() == '"id": 2,'


def test_a_category_that_the_given_classes_lack_is_named():
    write_coco()
    with pytest.raises(EnginewrightError, match=r"entry 1 of categories, is cat, which is not in samples.class_names"):
        opened("pets", class_names=("dog",))


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        ({"3": ""}, r"images/7.png has no file of its name in .*labels: an image without boxes has an empty one"),
        ({"3": "", "7": "", "8": ""}, r"labels/8.txt has no file of its name in .*images"),
        ({"3": "", "7": "0 .5 .5 .1"}, r"7.txt, line 1, has 4 cells; a box is: class, centre x"),
        ({"3": "", "7": "\n0 .5 .5 .1 x"}, "7.txt, line 2, holds what is no number"),
        ({"3": "", "7": "0.5 .5 .5 .1 .1"}, "7.txt, line 1, has the class 0.5, which is not from 0 to"),
        ({"3": "", "7": "0 .5 .5 .1 0"}, "7.txt, line 1, has a box of 0.1 by 0, which is no area"),
        ({"3": "", "7": "0 nan .5 .1 1"}, "7.txt, line 1, has a box that is no numbers"),
        ({"3": "", "7": "0 40 20 10 10"}, "7.txt, line 1, .* these are shares of the image, not pixels"),
        ({"3": "", "7": "0 .5 .5 .1 .1\n0 1 .5 .2 .1"}, "7.txt, line 2, has a box .*, outside its image of 80 by 40"),
        ({"3": "", "7": ""}, "labels holds no box, and classes.txt names no classes"),
        ({"3": "", "7": "", "../classes": "cat"}, "yolo has no box in any image, so nothing to find"),
    ],
)
def test_broken_labels_are_named_with_file_and_line(labels, told):
    write_yolo(labels)
    with pytest.raises(EnginewrightError) as caught:
        opened("yolo")
    assert re.search(told, str(caught.value)), str(caught.value)
