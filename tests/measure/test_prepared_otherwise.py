"""A classifier that would be right far more often for images that are prepared in another usual way is told."""

from dataclasses import replace

import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Range
from enginewright.core.params.samples import Preprocessing
from enginewright.data.preprocessing import normalize
from enginewright.data.sample_set import MANIFEST, Manifest, Sample, SampleSet, input_file
from enginewright.data.sources.arrays import ImageArray
from enginewright.data.splits import write_uncropped
from enginewright.measure.examples import doubt_about_preparation
from enginewright.tasks.choose import task_of

CLASSES, COUNT = 8, 80
IMAGENET = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
HALF = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
PLAIN = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
GREY = {"color": "grey", "mean": (0.0,), "std": (1.0,)}
SIZES = Range(min=1, opt=8, max=16)
IN_SHADES = np.linspace(20, 235, CLASSES)


def way(**changed):
    return Preprocessing(**{"resize": 4, "crop": 4, "interpolation": "bilinear"} | IMAGENET | changed)


def images_of(how, folder):
    """Write images whose class is how red they are, whatever their blue is."""
    labels = np.arange(COUNT) % CLASSES
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (COUNT, 3, 4, 4)).astype(np.uint8)
    pixels[:, 0] = IN_SHADES[labels].astype(np.uint8)[:, None, None]
    if how.color == "grey":
        pixels = pixels[:, [0, 0, 0]]
    return written(pixels.transpose(0, 2, 3, 1), labels, how, folder)


def lines_of(how, folder):
    """Write images of 40 by 60 pixels whose class is where a white line stands."""
    labels = np.arange(COUNT) % CLASSES
    images = np.zeros((COUNT, 40, 60, 3), np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, 16 + 4 * label] = 255
    return written(images, labels, how, folder)


def written(images, labels, how, folder):
    source = ImageArray("given", images, labels.tolist(), ())
    np.save(folder / input_file(0), np.stack([source.prepare(number, how).pixels for number in range(COUNT)]))
    write_uncropped(source, range(COUNT), folder)
    manifest = Manifest(
        task="classification",
        source="data/images/shades",
        inputs=("input",),
        preprocessing=how,
        class_names=tuple(map(str, range(CLASSES))),
        samples=tuple(Sample(f"{i}", f"{i:064x}", int(label)) for i, label in enumerate(labels)),
    )
    manifest.write(folder / MANIFEST)
    return SampleSet.open(folder)


class Trained:
    """A model that knows the shade of red as `how` prepares it: the nearest one is the answer."""

    def __init__(self, how):
        pixels = np.broadcast_to(IN_SHADES.astype(np.uint8)[:, None, None, None], (CLASSES, *how.shape))
        self.how, self.calls = how, 0
        self.known = self.red(normalize(pixels, how))

    def red(self, images):
        images = images.transpose(0, 3, 1, 2) if self.how.layout == "nhwc" else images
        return images[:, 2 if self.how.color == "bgr" else 0].mean((1, 2))

    def __call__(self, feeds):
        self.calls += 1
        return {"scores": -np.abs(self.red(feeds["input"])[:, None] - self.known)}


class KnowsColumns:
    """A model that knows in which column a line stands as `how` prepares images: the nearest one is the answer."""

    def __init__(self, how, folder, only=False):
        samples = lines_of(how, folder)
        self.shape, self.only = how.shape, only
        self.known = self.columns(samples.read_at(np.arange(CLASSES))["input"])

    def columns(self, images):
        bright = images.mean(1)
        return bright.mean(1).argmax(1) + 1000 * (bright.max(2) > 0).mean(1)  # and whether it is as long as the image

    def __call__(self, feeds):
        if self.only and feeds["input"].shape[1:] != self.shape:
            raise EnginewrightError("of one size")
        return {"scores": -np.abs(self.columns(feeds["input"])[:, None] - self.known).astype(np.float32)}


def doubted(model, samples, sizes=SIZES):
    outputs = model({"input": samples.read_at(np.arange(len(samples)))["input"]})
    task = task_of("classification", None, samples.manifest.class_names)
    return doubt_about_preparation(model, samples, task, outputs, sizes, "PyTorch")


@pytest.mark.parametrize(
    ("trained", "given", "told"),
    [
        (way(), way(**PLAIN), "mean [0.485, 0.456, 0.406] and std [0.229, 0.224, 0.225]"),
        (way(**PLAIN, divide_by=1), way(**HALF), "divide_by 1, mean [0, 0, 0] and std [1, 1, 1]"),
        (way(**HALF), way(**PLAIN, divide_by=1), "divide_by 255, mean [0.5, 0.5, 0.5] and std [0.5, 0.5, 0.5]"),
        (way(color="bgr", **HALF), way(**HALF), "color bgr"),
        (way(layout="nhwc", **HALF), way(layout="nhwc", color="bgr", **HALF), "color rgb"),
        (
            way(color="bgr", divide_by=1, mean=(103.939, 116.779, 123.68), std=(1.0, 1.0, 1.0)),
            way(),
            "color bgr, divide_by 1, mean [103.939, 116.779, 123.68] and std [1, 1, 1]",
        ),
        (way(**GREY | {"divide_by": 1}), way(**GREY), "divide_by 1"),
    ],
)
def test_the_way_that_the_model_knows_is_named_with_its_accuracy(tmp_path, trained, given, told):
    said = doubted(Trained(trained), images_of(given, tmp_path))
    assert said.startswith("PyTorch is right for ")
    assert f" of 64 images; with {told} it would be right for 100.0%: check samples.preprocessing" in said


MARGIN, NONE = {"resize": 36, "crop": 32}, {"resize": 32, "crop": 32}
OWN = {"resize": (40, 60), "crop": (40, 60)}  # the size of the images themselves
STRETCH = {"resize_mode": "stretch"}


@pytest.mark.parametrize(
    ("trained", "given", "only", "told"),
    [
        (NONE | STRETCH, MARGIN, True, "resize 32 and resize_mode stretch"),
        (MARGIN, NONE | STRETCH, True, "resize 36 and resize_mode shorter_side"),
        (NONE | {"resize_mode": "pad"}, MARGIN, True, "resize 32 and resize_mode pad"),
        (MARGIN, {"resize": 256, "crop": 224}, False, "resize 36 and crop 32"),
        (NONE | STRETCH, {"resize": 256, "crop": 224}, False, "resize 32, resize_mode stretch and crop 32"),
        (OWN | STRETCH, MARGIN, False, "resize [40, 60], resize_mode stretch and crop [40, 60]"),
    ],
)
def test_the_crop_that_the_model_knows_is_named(tmp_path, trained, given, only, told):
    model = KnowsColumns(way(**trained), tmp_path, only)
    said = doubted(model, lines_of(way(**given), tmp_path))
    assert f" of 64 images; with {told} it would be right for 100.0%: check samples.preprocessing" in (said or "")


@pytest.mark.parametrize("seen", [COUNT, 40])
def test_another_order_of_the_classes_is_named_where_each_has_enough_samples(tmp_path, seen):
    """Name the order where a folder's names are sorted and the model's classes are not, without another run of it."""
    model, samples = Trained(way()), images_of(way(), tmp_path)
    outputs = {"scores": model(samples.read_at(np.arange(seen)))["scores"][:, [3, 0, 1, 2, 4, 5, 6, 7]]}
    samples = replace(
        samples, manifest=samples.manifest.model_copy(update={"samples": samples.manifest.samples[:seen]})
    )
    task = task_of("classification", None, samples.manifest.class_names)
    said = doubt_about_preparation(model, samples, task, outputs, SIZES, "PyTorch") or ""
    named = "with samples.class_names [3, 0, 1, 2, 4, 5, 6, 7] it would be right for 100.0%: check their order"
    assert (named in said) == (seen == COUNT)


def test_a_model_that_is_mostly_right_pays_nothing(tmp_path):
    model = Trained(way())
    assert doubted(model, images_of(way(), tmp_path)) is None
    assert model.calls == 1


def test_a_batch_of_one_size_is_filled_up(tmp_path):
    model, samples = Trained(way()), images_of(way(**PLAIN), tmp_path)

    def of_five(feeds):
        assert len(feeds["input"]) in (5, COUNT)
        return model(feeds)

    assert "std [0.229" in doubted(of_five, samples, Range(min=5, opt=5, max=5))


def test_a_model_that_guesses_is_not_said_to_know_images_in_another_way(tmp_path):
    samples = images_of(way(), tmp_path)
    rng = np.random.default_rng(1)
    for _ in range(10):
        assert doubted(lambda feeds: {"scores": rng.random((len(feeds["input"]), CLASSES))}, samples) is None


def test_a_model_that_refuses_other_values_is_no_failure(tmp_path):
    model, samples = Trained(way(**HALF)), images_of(way(**PLAIN), tmp_path)

    def strict(feeds):
        if np.abs(feeds["input"]).max() > 1:
            raise EnginewrightError("values from -1 to 1, please")
        return model(feeds)

    assert "with mean [0.5, 0.5, 0.5] and std [0.5, 0.5, 0.5] it would" in doubted(strict, samples)
