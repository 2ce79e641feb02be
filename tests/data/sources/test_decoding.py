"""Every kind of image comes out as the picture that a person sees."""

import contextlib
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from enginewright.core.errors import EnginewrightError
from enginewright.data.preprocessing import decode

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)
ORIENTATION, THUMBNAIL = 0x0112, 0x0201  # tags of EXIF
ASCII, LONG = 2, 4  # types of tags
DEEP = np.array([[[0, 257, 25700], [65535, 511, 255]]], np.uint16)  # their upper bytes: 0, 1, 100; 255, 1, 0
SHALLOW = [[0, 1, 100], [255, 1, 0]]
GREY, GREY_ALPHA, RGB, RGB_ALPHA = 0, 4, 2, 6  # PNG's colour types


def striped(colors, width=1, height=4):
    """Return an image with a vertical stripe for each colour."""
    row = np.repeat(np.array(colors, np.uint8), width, axis=0)
    return Image.fromarray(np.tile(row, (height, 1, 1)))


def picture(array, mode="RGB"):
    return Image.fromarray(np.asarray(array, np.uint8)).convert(mode)


def png(path, values, color_type, transparency=b""):
    """Write a PNG of 16 bits. Pillow cannot write most kinds of these."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    height, width = values.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 16, color_type, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + row.astype(">u2").tobytes() for row in values))
    clear = chunk(b"tRNS", transparency) if transparency else b""
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + clear + chunk(b"IDAT", rows) + chunk(b"IEND", b""))


def tiff(path, values, photometric, sample_format=1):
    """Write an uncompressed TIFF of one strip: directory, bits per sample, pixels."""
    height, width, samples = values.shape
    place = 8 + 2 + 11 * 12 + 4
    bits = struct.pack(f"<{samples}H", *[values.dtype.itemsize * 8] * samples)
    start = place + 8
    entries = [
        (256, 4, 1, width),
        (257, 4, 1, height),
        (258, 3, samples, place if samples > 2 else int.from_bytes(bits, "little")),
        (259, 3, 1, 1),
        (262, 3, 1, photometric),
        (273, 4, 1, start),
        (277, 3, 1, samples),
        (278, 4, 1, height),
        (279, 4, 1, values.nbytes),
        (284, 3, 1, 1),
        (339, 3, 1, sample_format),
    ]
    directory = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    content = b"II*\0" + struct.pack("<IH", 8, len(entries)) + directory + bytes(4) + bits.ljust(8, b"\0")
    path.write_bytes(content + values.tobytes())


def decoded(path):
    image = decode(path)
    assert image.mode == "RGB"
    return np.asarray(image)


@pytest.mark.parametrize(
    ("orientation", "undo"),
    [
        (3, Image.Transpose.ROTATE_180),
        (6, Image.Transpose.ROTATE_90),  # the camera was turned right: stored as a landscape, shown as a portrait
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


@pytest.mark.parametrize("mode", ["L", "I;16", "P", "RGBA", "CMYK", "RGB"])
@pytest.mark.parametrize("orientation", [1, 3, 5, 6, 7, 8])
def test_an_uncompressed_tiff_is_turned_pixel_by_pixel(tmp_path, orientation, mode):
    """The image is not square: Pillow would read rows of their later length if it opened the file by its name."""
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    image = Image.fromarray(grey.astype(np.uint16) << 8) if mode == "I;16" else Image.fromarray(grey).convert(mode)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    image.save(tmp_path / "turned.tif", exif=exif)
    turn = {1: grey, 3: grey[::-1, ::-1], 5: grey.T, 6: np.rot90(grey, -1), 7: grey[::-1, ::-1].T, 8: np.rot90(grey)}
    assert np.array_equal(decoded(tmp_path / "turned.tif")[..., 0], turn[orientation])


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data")
@pytest.mark.parametrize("name", ["photo.png", "photo.webp", "photo.jpg"])
@pytest.mark.parametrize("block", [b"Exif\0\0", b"Exif\0\0MM", b"Exif\0\0no tags at all", b"Exif\0\0MM\0*\0\0\0\x08"])
def test_a_photo_whose_exif_makes_no_sense_stays_as_it_is(tmp_path, name, block):
    lossless = {"lossless": True} if name.endswith("webp") else {}
    striped([RED, BLUE], width=16, height=16).save(tmp_path / name, exif=block, **lossless)
    assert np.abs(decoded(tmp_path / name)[8, 8].astype(int) - RED).max() < 5


def test_a_photo_is_turned_although_another_tag_makes_no_sense(tmp_path):
    exif = turned()
    exif[THUMBNAIL] = 8
    block = exif.tobytes().replace(struct.pack(">HHI", THUMBNAIL, LONG, 1), struct.pack(">HHI", THUMBNAIL, ASCII, 1))
    striped([RED, BLUE]).save(tmp_path / "photo.png", exif=block)
    with Image.open(tmp_path / "photo.png") as opened, pytest.raises(struct.error):
        ImageOps.exif_transpose(opened)
    assert decoded(tmp_path / "photo.png")[:, 0].tolist() == [list(RED), list(BLUE)]


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


def test_sixteen_bits_of_color_become_eight(tmp_path):
    png(tmp_path / "deep.png", DEEP, RGB)
    tiff(tmp_path / "deep.tif", DEEP, photometric=2)
    for name in ("deep.png", "deep.tif"):
        assert decoded(tmp_path / name)[0].tolist() == SHALLOW, name


def test_sixteen_bits_of_grey_become_the_same_eight(tmp_path):
    grey = DEEP.reshape(1, 6, 1)
    png(tmp_path / "deep.png", grey, GREY)
    tiff(tmp_path / "deep.tif", grey, photometric=1)
    tiff(tmp_path / "white_is_zero.tif", 65535 - grey, photometric=0)
    for name in ("deep.png", "deep.tif", "white_is_zero.tif"):
        assert decoded(tmp_path / name)[0, :, 1].tolist() == [0, 1, 100, 255, 1, 0], name


def test_sixteen_bits_with_transparency(tmp_path):
    clear, solid = [25700, 0], [25700, 65535]
    png(tmp_path / "grey.png", np.array([[clear, solid]]), GREY_ALPHA)
    assert decoded(tmp_path / "grey.png")[0].tolist() == [[255] * 3, [100] * 3]
    png(tmp_path / "color.png", np.array([[[65535, 0, 0, 65535], [65535, 0, 0, 0]]]), RGB_ALPHA)
    assert decoded(tmp_path / "color.png")[0].tolist() == [[255, 0, 0], [255, 255, 255]]


def test_a_transparent_grey_of_sixteen_bits_shows_white_paper(tmp_path):
    """Only one of two shades is transparent that are alike in eight bits."""
    png(tmp_path / "grey.png", np.array([[[25700], [25701], [0]]]), GREY, struct.pack(">H", 25700))
    assert decoded(tmp_path / "grey.png")[0, :, 0].tolist() == [255, 100, 0]


@pytest.mark.parametrize(("most", "values"), [(65535, (0, 25700, 65535)), (4095, (0, 1606, 4095))])
def test_a_pgm_of_more_than_eight_bits_is_scaled_by_its_maximum(tmp_path, most, values):
    (tmp_path / "deep.pgm").write_bytes(b"P5\n3 1\n%d\n" % most + struct.pack(">3H", *values))
    assert decoded(tmp_path / "deep.pgm")[0, :, 0].tolist() == [0, 100, 255]


@pytest.mark.parametrize(("kind", "sample_format"), [(np.uint32, 1), (np.int16, 2), (np.float32, 3)])
def test_values_whose_black_and_white_are_unknown_are_refused(tmp_path, kind, sample_format):
    tiff(tmp_path / "science.tif", np.ones((2, 2, 1), kind), photometric=1, sample_format=sample_format)
    with pytest.raises(
        EnginewrightError, match=r"science\.tif is not an image that can be decoded: its values have 32"
    ):
        decode(tmp_path / "science.tif")


SHADOW = Image.fromarray(np.array([[[0, 0, 0, 0], [0, 0, 0, 51], [0, 0, 0, 255]]], np.uint8))


@pytest.mark.parametrize("image", [SHADOW, SHADOW.convert("LA"), SHADOW.quantize(3)], ids=["RGBA", "LA", "palette"])
def test_what_is_transparent_shows_white_paper(tmp_path, image):
    """The colour that is stored beneath does not show."""
    image.save(tmp_path / "image.png")
    assert decoded(tmp_path / "image.png")[0].tolist() == [[255] * 3, [204] * 3, [0] * 3]


def test_a_transparent_color_shows_white_paper(tmp_path):
    palette = Image.new("P", (2, 1))
    palette.putpalette([*RED, *BLUE])
    palette.putpixel((1, 0), 1)
    palette.save(tmp_path / "palette.png", transparency=0)
    palette.save(tmp_path / "palette.gif", transparency=0)
    striped([RED, BLUE], height=1).save(tmp_path / "color.png", transparency=RED)
    for name in ("palette.png", "palette.gif", "color.png"):
        assert decoded(tmp_path / name)[0].tolist() == [list(WHITE), list(BLUE)], name


@pytest.mark.parametrize("name", ["moving.gif", "moving.webp", "pages.tif", "moving.png"])
def test_only_the_first_of_several_frames_counts(tmp_path, name):
    lossless = {"lossless": True} if name.endswith("webp") else {}
    frames = [Image.new("RGB", (4, 4), color) for color in (RED, BLUE)]
    frames[0].save(tmp_path / name, save_all=True, append_images=frames[1:], **lossless)
    assert (decoded(tmp_path / name) == RED).all()


def test_a_ycck_jpeg_has_the_right_colors(tmp_path):
    """Photoshop writes inverted CMYK whose first three channels are stored as luma and chroma."""
    inks = Image.merge("CMYK", [Image.new("L", (16, 16), ink) for ink in (30, 220, 140, 0)])
    cyan, magenta, yellow, black = inks.split()
    luma_chroma = Image.merge("RGB", (cyan, magenta, yellow)).convert("YCbCr").split()
    inverted = [Image.eval(plane, lambda value: 255 - value) for plane in luma_chroma]  # Pillow inverts what it writes
    Image.merge("CMYK", (*inverted, black)).save(tmp_path / "print.jpg", quality=100)
    content = (tmp_path / "print.jpg").read_bytes()
    marker = content.index(b"Adobe") + len(b"Adobe") + 6  # version and two flags, then the transform
    assert content[marker] == 0
    (tmp_path / "print.jpg").write_bytes(content[:marker] + b"\2" + content[marker + 1 :])
    assert np.abs(decoded(tmp_path / "print.jpg")[8, 8].astype(int) - (225, 35, 115)).max() <= 3


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
        with pytest.raises(EnginewrightError, match=rf"{name} is not an image that can be decoded: "):
            decode(path)


@pytest.mark.parametrize("name", ["image.png", "image.jpg", "image.webp", "image.avif", "image.gif", "image.tif"])
def test_damage_anywhere_is_decoded_or_refused(tmp_path, name):
    path, rng = tmp_path / name, np.random.default_rng(0)
    whole = saved(path, exif=turned()) if name != "image.gif" else saved(path)
    for _ in range(150):
        damaged = bytearray(whole)
        for place in rng.integers(0, min(len(whole), 600), 3):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        with contextlib.suppress(EnginewrightError):
            assert decode(path).mode == "RGB"


def turned():
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    return exif


def test_a_text_file_is_no_image(tmp_path):
    (tmp_path / "note.jpg").write_text("not an image")
    with pytest.raises(EnginewrightError, match=r"note\.jpg is not an image that can be decoded"):
        decode(tmp_path / "note.jpg")


def test_an_image_that_claims_to_be_enormous_is_refused(tmp_path):
    path = tmp_path / "bomb.bmp"
    content = bytearray(saved(path))
    content[18:26] = (100_000).to_bytes(4, "little") * 2  # width and height
    path.write_bytes(content)
    with pytest.raises(EnginewrightError, match=r"bomb\.bmp is not an image that can be decoded"):
        decode(path)
