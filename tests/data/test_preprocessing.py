from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import Preprocessing
from enginewright.data.preprocessing import normalize, pixels_of, prepare
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources import open_source
from enginewright.data.splits import write_split

RED, GREEN, BLUE, GREY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128)


def how(size=4, crop=4, interpolation="nearest", mean=(0, 0, 0), std=(1, 1, 1), **rest):
    return Preprocessing(resize=size, crop=crop, interpolation=interpolation, mean=mean, std=std, **rest)


def striped(colors, width=1, height=4):
    """Return an image with a vertical stripe for each colour."""
    row = np.repeat(np.array(colors, np.uint8), width, axis=0)
    return Image.fromarray(np.tile(row, (height, 1, 1)))


def picture(array, mode="RGB"):
    return Image.fromarray(np.asarray(array, np.uint8)).convert(mode)


def colors_across(pixels):
    return [tuple(int(value) for value in pixels[:, pixels.shape[1] // 2, x]) for x in range(pixels.shape[2])]


def test_a_landscape_keeps_its_middle():
    image = striped([RED, GREEN, GREEN, BLUE], width=2, height=4)  # 8 wide, 4 high
    assert colors_across(pixels_of(image, how(4, 4))) == [GREEN] * 4


def test_a_portrait_keeps_its_middle():
    image = striped([RED, GREEN, GREEN, BLUE], width=2, height=4).transpose(Image.Transpose.ROTATE_90)
    pixels = pixels_of(image, how(4, 4))
    assert np.array_equal(pixels, np.broadcast_to(np.array(GREEN, np.uint8)[:, None, None], (3, 4, 4)))


def test_the_shorter_side_is_scaled_and_the_middle_cut():
    """30 by 10 becomes 12 by 4, of which the columns 5 and 6 and the rows 1 and 2 stay: where x is 12.5 to 17.5."""
    x = np.arange(30) * 8
    ramp = picture(np.stack([np.tile(x, (10, 1))] * 3, axis=2))
    pixels = pixels_of(ramp, how(4, 2))
    assert pixels.shape == (3, 2, 2)
    assert (pixels[0, 0] // 8).tolist() == [13, 16]  # nearest: the columns at 5.5 and 6.5 times 2.5


def test_a_small_image_is_enlarged():
    assert pixels_of(striped([RED, BLUE], width=1, height=2), how(8, 8)).shape == (3, 8, 8)


@pytest.mark.parametrize("size", [(7, 5), (5, 7), (1, 100), (100, 1), (333, 334), (3, 3)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_every_shape_comes_out_square_and_opaque(size, interpolation):
    """An image that is all grey stays all grey, as nothing outside the image is read."""
    pixels = pixels_of(Image.new("RGB", size, GREY), how(6, 5, interpolation))
    assert pixels.shape == (3, 5, 5)
    assert pixels.dtype == np.uint8
    assert (pixels == 128).all()


def test_channels_come_red_first():
    assert pixels_of(Image.new("RGB", (4, 4), (1, 2, 3)), how())[:, 0, 0].tolist() == [1, 2, 3]


def test_normalizing_scales_to_one_then_subtracts_the_mean_and_divides():
    pixels = np.array([[[[0]], [[51]], [[255]]]], np.uint8)
    got = normalize(pixels, how(mean=(0.5, 0.1, 0.4), std=(0.5, 0.2, 0.1)))
    assert got.dtype == np.float32
    assert got.reshape(-1) == pytest.approx([(0 - 0.5) / 0.5, (0.2 - 0.1) / 0.2, (1 - 0.4) / 0.1])


def test_normalizing_agrees_with_torchvision():
    import torch
    from torchvision.transforms.functional import normalize as reference

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 3, 5, 5), dtype=np.uint8)
    wanted = reference(torch.from_numpy(pixels).float() / 255, mean, std).numpy()
    assert normalize(pixels, how(mean=mean, std=std)) == pytest.approx(wanted, abs=1e-6)


@pytest.mark.parametrize("size", [(40, 30), (30, 40), (64, 48), (50, 50), (37, 61), (61, 40), (12, 9)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
def test_resizing_agrees_with_torchvision_to_the_pixel(size, interpolation):
    """Models are trained with torchvision's resizing."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

    image = picture(np.random.default_rng(0).integers(0, 256, (*size, 3)))
    for crop in (16, 15):
        reference = Compose([Resize(20, InterpolationMode(interpolation)), CenterCrop(crop)])
        got = pixels_of(image, how(20, crop, interpolation)).transpose(1, 2, 0)
        assert np.array_equal(got, np.asarray(reference(image)))


def ramp(width, height):
    return picture(np.random.default_rng(1).integers(0, 256, (height, width, 3)))


def test_stretching_ignores_the_proportions():
    """Do as torchvision's Resize with a height and a width, then crop the middle."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

    image = ramp(40, 30)
    reference = Compose([Resize((12, 20), InterpolationMode.BILINEAR), CenterCrop((10, 16))])
    stretched = how([12, 20], [10, 16], "bilinear", resize_mode="stretch")
    assert stretched.shape == (3, 10, 16)
    assert np.array_equal(pixels_of(image, stretched).transpose(1, 2, 0), np.asarray(reference(image)))


@pytest.mark.parametrize(
    ("width", "height", "rows", "columns"),
    [(40, 20, slice(2, 6), slice(0, 8)), (20, 40, slice(0, 8), slice(2, 6)), (8, 8, slice(0, 8), slice(0, 8))],
)
def test_padding_shows_the_whole_image_in_the_middle(width, height, rows, columns):
    image = ramp(width, height)
    pixels = pixels_of(image, how(8, 8, "bilinear", resize_mode="pad", fill=114)).transpose(1, 2, 0)
    inner = pixels[rows, columns]
    small = image.resize((inner.shape[1], inner.shape[0]), Image.Resampling.BILINEAR)
    assert np.array_equal(inner, np.asarray(small))
    outside = np.ones((8, 8), bool)
    outside[rows, columns] = False
    assert (pixels[outside] == 114).all()


def test_padding_to_a_rectangle_keeps_a_very_thin_image_visible():
    pixels = pixels_of(Image.new("RGB", (1, 500), GREEN), how([10, 30], [10, 30], resize_mode="pad"))
    assert pixels.shape == (3, 10, 30)
    assert (pixels[1] == 255).sum() == 10  # one column


def test_the_crop_of_a_rectangle_is_its_middle():
    image = striped([RED, GREEN, BLUE], width=4, height=12)
    assert colors_across(pixels_of(image, how(12, [12, 4]))) == [GREEN] * 4


def test_blue_first_is_red_first_reversed():
    image = ramp(9, 9)
    wanted = pixels_of(image, how())[::-1]
    assert np.array_equal(pixels_of(image, how(color="bgr")), wanted)
    assert pixels_of(Image.new("RGB", (4, 4), (1, 2, 3)), how(color="bgr"))[:, 0, 0].tolist() == [3, 2, 1]


def test_grey_is_one_channel_with_the_weights_of_torchvision():
    from torchvision.transforms import Grayscale

    image = ramp(4, 4)
    grey = how(color="grey", mean=[0.5], std=[0.5])
    assert grey.shape == (1, 4, 4)
    assert np.array_equal(pixels_of(image, grey)[0], np.asarray(Grayscale()(image)))
    shades = np.arange(256, dtype=np.uint8).reshape(16, 16)
    as_rgb = Image.fromarray(shades).convert("RGB")
    assert np.array_equal(pixels_of(as_rgb, how(16, 16, color="grey", mean=[0], std=[1]))[0], shades)


def test_channels_may_come_last():
    image = ramp(9, 7)
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    first, last = how(5, [4, 5], mean=mean, std=std), how(5, [4, 5], mean=mean, std=std, layout="nhwc")
    assert last.shape == (4, 5, 3)
    pixels = pixels_of(image, last)
    assert np.array_equal(pixels, pixels_of(image, first).transpose(1, 2, 0))
    assert np.array_equal(normalize(pixels, last), normalize(pixels_of(image, first), first).transpose(1, 2, 0))


def test_values_may_stay_as_they_are():
    pixels = np.array([[[0]], [[51]], [[255]]], np.uint8)
    assert normalize(pixels, how(divide_by=1, mean=(1, 1, 1))).reshape(-1).tolist() == [-1, 50, 254]
    assert normalize(pixels, how(divide_by=127.5, mean=(1, 1, 1))).reshape(-1) == pytest.approx([-1, -0.6, 1])


def test_a_strip_that_would_fill_the_memory_is_refused_by_name(tmp_path):
    Image.new("RGB", (1, 20_000)).save(tmp_path / "strip.png")
    with pytest.raises(
        EnginewrightError, match=r"strip\.png: 1 by 20000 pixels are too long a strip .* side to 224; take"
    ):
        prepare(tmp_path / "strip.png", how(224, 224))
    assert prepare(tmp_path / "strip.png", how(224, 224, resize_mode="pad")).shape == (3, 224, 224)


def test_one_pixel_is_enlarged():
    assert (pixels_of(Image.new("RGB", (1, 1), GREY), how(32, 32, "bicubic")) == 128).all()


SETTINGS = [
    {},
    {"color": "bgr", "layout": "nhwc", "divide_by": 1},
    {"color": "grey", "mean": (0.4,), "std": (0.3,), "interpolation": "lanczos"},
    {"size": [20, 30], "crop": [18, 24], "resize_mode": "stretch", "interpolation": "bicubic"},
    {"size": [24, 16], "crop": [24, 16], "resize_mode": "pad", "fill": 114},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.get("resize_mode", str(len(settings))))
def test_inference_and_validation_read_a_file_to_the_same_bits(pets, samples_params, settings):
    chosen = {
        "size": 20,
        "crop": 16,
        "interpolation": "bilinear",
        "mean": (0.485, 0.456, 0.406),
        "std": (0.2, 0.3, 0.4),
    }
    params = samples_params(preprocessing=how(**chosen | settings), training=0, validation=3)
    ramp(37, 23).save(pets / "dog/1.png")
    ramp(23, 37).save(pets / "cat/b.JPG")
    write_split(open_source(params, Path("data")), [2, 0, 1], params, Path("validation"))
    samples = SampleSet.open(Path("validation"))
    (feeds,) = samples.batches(8)
    batch = feeds["input"]
    assert batch.dtype == np.float32
    assert batch.shape == (3, *params.preprocessing.shape)
    for sample, validated in zip(samples.manifest.samples, batch, strict=True):
        given = prepare(pets / sample.name, samples.manifest.preprocessing)
        assert given.dtype == np.float32
        assert given.tobytes() == validated.tobytes()
