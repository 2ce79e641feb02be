import numpy as np
import pytest
from PIL import Image

from enginery.core.errors import EngineryError
from enginery.core.params import Preprocessing
from enginery.preprocessing import decode, normalize, resize

RED, GREEN, BLUE, GREY = (255, 0, 0), (0, 255, 0), (0, 0, 255), (128, 128, 128)
ORIENTATION = 0x0112


def how(size=4, crop=4, interpolation="nearest", mean=(0, 0, 0), std=(1, 1, 1)):
    return Preprocessing(resize=size, crop=crop, interpolation=interpolation, mean=mean, std=std)


def striped(colors, width=1, height=4):
    """One vertical stripe per colour."""
    row = np.repeat(np.array(colors, np.uint8), width, axis=0)
    return Image.fromarray(np.tile(row, (height, 1, 1)))


def picture(array, mode="RGB"):
    return Image.fromarray(np.asarray(array, np.uint8)).convert(mode)


def colors_across(pixels):
    return [tuple(int(value) for value in pixels[:, pixels.shape[1] // 2, x]) for x in range(pixels.shape[2])]


def test_a_landscape_keeps_its_middle():
    image = striped([RED, GREEN, GREEN, BLUE], width=2, height=4)  # 8 wide, 4 high
    assert colors_across(resize(image, how(4, 4))) == [GREEN] * 4


def test_a_portrait_keeps_its_middle():
    image = striped([RED, GREEN, GREEN, BLUE], width=2, height=4).transpose(Image.Transpose.ROTATE_90)
    pixels = resize(image, how(4, 4))
    assert np.array_equal(pixels, np.broadcast_to(np.array(GREEN, np.uint8)[:, None, None], (3, 4, 4)))


def test_the_shorter_side_is_scaled_and_the_middle_cut():
    """30 by 10 becomes 12 by 4, of which the columns 5 and 6 and the rows 1 and 2 stay: where x is 12.5 to 17.5."""
    x = np.arange(30) * 8
    ramp = picture(np.stack([np.tile(x, (10, 1))] * 3, axis=2))
    pixels = resize(ramp, how(4, 2))
    assert pixels.shape == (3, 2, 2)
    assert (pixels[0, 0] // 8).tolist() == [13, 16]  # nearest: the columns at 5.5 and 6.5 times 2.5


def test_a_small_image_is_enlarged():
    assert resize(striped([RED, BLUE], width=1, height=2), how(8, 8)).shape == (3, 8, 8)


@pytest.mark.parametrize("size", [(7, 5), (5, 7), (1, 100), (100, 1), (333, 334), (3, 3)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_every_shape_comes_out_square_and_opaque(size, interpolation):
    """An image that is all grey stays all grey: nothing outside it is ever seen."""
    pixels = resize(Image.new("RGB", size, GREY), how(6, 5, interpolation))
    assert pixels.shape == (3, 5, 5)
    assert pixels.dtype == np.uint8
    assert (pixels == 128).all()


def test_channels_come_red_first():
    assert resize(Image.new("RGB", (4, 4), (1, 2, 3)), how())[:, 0, 0].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("orientation", "undo"),
    [
        (3, Image.Transpose.ROTATE_180),
        (6, Image.Transpose.ROTATE_90),  # the camera was turned right: stored lying, to be seen standing
        (8, Image.Transpose.ROTATE_270),
        (2, Image.Transpose.FLIP_LEFT_RIGHT),
    ],
)
def test_a_photo_is_turned_as_its_exif_says(tmp_path, orientation, undo):
    upright = picture(np.arange(2 * 3 * 3).reshape(2, 3, 3) * 10)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    upright.transpose(undo).save(tmp_path / "photo.png", exif=exif)
    assert np.array_equal(np.asarray(decode(tmp_path / "photo.png")), np.asarray(upright))


def test_grey_becomes_three_equal_channels(tmp_path):
    Image.fromarray(np.array([[0, 100, 255]], np.uint8)).save(tmp_path / "grey.png")
    assert np.asarray(decode(tmp_path / "grey.png"))[0].tolist() == [[0] * 3, [100] * 3, [255] * 3]


def test_sixteen_bit_grey_is_scaled_and_not_clipped(tmp_path):
    Image.fromarray(np.array([[0, 257, 25700, 65535]], np.uint16)).save(tmp_path / "deep.png")
    assert np.asarray(decode(tmp_path / "deep.png"))[0, :, 0].tolist() == [0, 1, 100, 255]


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK", "1", "LA"])
def test_other_kinds_of_images_are_decoded_to_what_they_show(tmp_path, mode):
    colors = [(255, 255, 255), (0, 0, 0)] if mode in ("1", "LA") else [RED, BLUE]
    image = striped(colors, width=8, height=8)
    image.convert(mode).save(tmp_path / "image.tif")
    decoded = decode(tmp_path / "image.tif")
    assert decoded.mode == "RGB"
    assert decoded.getpixel((2, 2)) == colors[0]
    assert decoded.getpixel((13, 2)) == colors[1]


def test_a_cmyk_jpeg_has_the_right_colors(tmp_path):
    striped([RED, BLUE], width=16, height=16).convert("CMYK").save(tmp_path / "print.jpg", quality=95)
    decoded = np.asarray(decode(tmp_path / "print.jpg")).astype(int)
    assert np.abs(decoded[8, 4] - RED).max() < 30
    assert np.abs(decoded[8, 28] - BLUE).max() < 30


def saved(path, **options):
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path, **options)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["image.png", "image.jpg", "image.webp", "image.bmp"])
def test_a_truncated_image_is_refused_by_name(tmp_path, name):
    path = tmp_path / name
    whole = saved(path)
    for length in (0, 10, len(whole) // 2):
        path.write_bytes(whole[:length])
        with pytest.raises(EngineryError, match=rf"{name} is not an image that can be decoded: "):
            decode(path)


def test_a_text_file_is_no_image(tmp_path):
    (tmp_path / "note.jpg").write_text("not an image")
    with pytest.raises(EngineryError, match=r"note\.jpg is not an image that can be decoded"):
        decode(tmp_path / "note.jpg")


def test_an_image_that_claims_to_be_enormous_is_refused(tmp_path):
    path = tmp_path / "bomb.bmp"
    content = bytearray(saved(path))
    content[18:26] = (100_000).to_bytes(4, "little") * 2  # width and height
    path.write_bytes(content)
    with pytest.raises(EngineryError, match=r"bomb\.bmp is not an image that can be decoded"):
        decode(path)


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
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_resizing_agrees_with_torchvision_to_the_pixel(size, interpolation):
    """Models are trained with it."""
    from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

    image = picture(np.random.default_rng(0).integers(0, 256, (*size, 3)))
    for crop in (16, 15):
        reference = Compose([Resize(20, InterpolationMode(interpolation)), CenterCrop(crop)])
        got = resize(image, how(20, crop, interpolation)).transpose(1, 2, 0)
        assert np.array_equal(got, np.asarray(reference(image)))
