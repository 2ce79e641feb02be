import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from enginewright.core.errors import EnginewrightError
from enginewright.core.user_files import user_file
from enginewright.data.sources import open_source
from enginewright.data.sources.arrays import open_digits


def test_a_folder_of_class_folders_gives_names_labels_and_hashes(pets, samples_params):
    source = open_source(samples_params(), Path("data"))
    prepared = [source.prepare(index, samples_params().preprocessing) for index in range(len(source))]
    assert source.class_names == ("cat", "dog")
    found = [(item.sample.name, item.sample.label, int(item.pixels[0, 0, 0])) for item in prepared]
    assert found == [("cat/b.JPG", 0, 20), ("cat/deeper/a.png", 0, 10), ("dog/1.png", 1, 30)]
    assert len({item.sample.sha256 for item in prepared}) == 3


@pytest.mark.parametrize("path", ["/etc", "data/../elsewhere", "elsewhere", "data"])
def test_what_lies_outside_data_is_refused(pets, path):
    Path("elsewhere").mkdir()
    with pytest.raises(EnginewrightError, match=rf"samples\.source: {path} does not lie in data/.*move it there"):
        user_file(path, Path("data"), "samples.source", "digits")


def test_a_link_out_of_data_is_refused(pets):
    Path("data/link").symlink_to("/etc")
    with pytest.raises(EnginewrightError, match="does not lie in data"):
        user_file("data/link", Path("data"), "samples.source", "digits")


@pytest.mark.parametrize("odd", ["dog/\udcff.png", "\udcff/1.png"])
def test_a_name_that_is_no_text_is_refused(pets, samples_params, odd):
    """Linux takes any bytes for the name of a file, and no record can hold them."""
    root = Path(samples_params().source)
    (root / odd).parent.mkdir(exist_ok=True)
    shutil.copy(root / "dog/1.png", root / odd)
    with pytest.raises(EnginewrightError, match="is a name whose bytes are no text in UTF-8"):
        open_source(samples_params(), Path("data"))


def test_what_does_not_exist_is_named(pets):
    with pytest.raises(EnginewrightError, match=r"weights\.source: data/none\.pt does not exist"):
        user_file("data/none.pt", Path("data"), "weights.source", "train")


def test_a_folder_without_images_is_refused(pets, samples_params):
    Path("data/empty/cat").mkdir(parents=True)
    with pytest.raises(EnginewrightError, match="data/empty holds no images: it needs a folder per class"):
        open_source(samples_params("data/empty"), Path("data"))


def test_files_that_are_no_images_by_their_names_are_left_out_and_counted(pets, samples_params, capsys):
    (pets / "cat" / "phone.HEIC").write_bytes(b"a photo of another kind")
    (pets / "cat" / "deeper" / "readme").touch()
    open_source(samples_params(), Path("data"))
    assert capsys.readouterr().out == (
        "data/pets: files that are no images by their names are left out: 1 of .heic, 1 of .txt, 1 of no suffix\n"
    )


def test_links_that_are_not_followed_are_left_out_and_counted(pets, samples_params, capsys):
    (pets / "cat/notes.txt").unlink()
    (pets / "cat" / "lost.jpg").symlink_to("nowhere.jpg")
    (pets / "cat" / "more").symlink_to(Path("../dog"))
    assert len(open_source(samples_params(), Path("data"))) == 3
    assert capsys.readouterr().out == (
        "data/pets: links to folders, and to what is not there, are left out: 2, such as data/pets/cat/lost.jpg\n"
    )


def test_a_folder_without_images_is_no_class_unless_that_is_said(pets, samples_params, preprocessing):
    (pets / "__MACOSX").mkdir()
    with pytest.raises(EnginewrightError, match=r"data/pets holds folders without images, __MACOSX: take them out, or"):
        open_source(samples_params(), Path("data"))
    source = open_source(samples_params(class_names=("cat", "dog")), Path("data"))
    assert [sample.label for sample in prepared(source, preprocessing)] == [0, 0, 1]


def test_the_digits_are_scaled_to_the_full_range(preprocessing):
    digits = open_digits()
    assert len(digits) == 1797
    assert digits.class_names == tuple("0123456789")
    first = digits.prepare(0, preprocessing)
    assert first.sample.label == 0
    assert first.pixels.shape == (3, 8, 8)
    assert first.pixels.max() == round(15 * 255 / 16)  # this digit uses all of the 16 shades but the last
    assert np.array_equal(first.pixels[0], first.pixels[2])


def prepared(source, how):
    return [source.prepare(index, how).sample for index in range(len(source))]


def test_images_alone_have_no_labels(pets, samples_params, preprocessing):
    source = open_source(samples_params("data/pets/dog"), Path("data"))
    assert [(sample.name, sample.label) for sample in prepared(source, preprocessing)] == [("1.png", None)]
    assert source.class_names == ()
    named = open_source(samples_params("data/pets/dog", class_names=("cat", "dog")), Path("data"))
    assert named.class_names == ("cat", "dog")


def test_images_beside_class_folders_are_refused(pets, samples_params):
    Image.new("L", (9, 9)).save("data/pets/stray.png")
    with pytest.raises(
        EnginewrightError, match=r"class folders, such as data/pets/cat/b\.JPG.*data/pets/stray\.png: move"
    ):
        open_source(samples_params(), Path("data"))


def test_a_list_of_classes_gives_their_order(pets, samples_params, preprocessing):
    """A class of the model is one even if it has no folder here."""
    source = open_source(samples_params(class_names=("dog", "bird", "cat")), Path("data"))
    assert [sample.label for sample in prepared(source, preprocessing)] == [2, 2, 0]
    assert source.class_names == ("dog", "bird", "cat")


def test_a_file_of_classes_gives_names_to_folders(pets, samples_params, preprocessing):
    Path("data/classes.txt").write_text("bird\tBlue tit\ncat\tSiamese cat, Siamese\ndog\n")
    source = open_source(samples_params(class_names="data/classes.txt"), Path("data"))
    assert [sample.label for sample in prepared(source, preprocessing)] == [1, 1, 2]
    assert source.class_names == ("Blue tit", "Siamese cat, Siamese", "dog")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (
            ("cat", "bird"),
            r"data/pets/dog/1\.png gives the label 'dog', which is not one of the 2 in samples\.class_na",
        ),
        (("cat", "dog", "cat"), r"samples\.class_names names the class cat twice"),
        ("data/empty.txt", r"samples\.class_names: data/empty\.txt names no class"),
        ("data/pets/dog/1.png", r"1\.png is not a text file with a class per line"),
        ("data/pets", r"data/pets is not a text file"),
        ("data/none.txt", r"samples\.class_names: data/none\.txt does not exist; give null, a list or a path in data/"),
        ("/etc/passwd", r"samples\.class_names: /etc/passwd does not lie in data/"),
    ],
)
def test_classes_that_do_not_fit_are_refused(pets, samples_params, classes, message):
    Path("data/empty.txt").touch()
    with pytest.raises(EnginewrightError, match=message):
        open_source(samples_params(class_names=classes), Path("data"))


def test_the_digits_name_their_own_classes(samples_params):
    with pytest.raises(EnginewrightError, match=r"samples\.class_names: the digits name their own classes"):
        open_source(samples_params("digits", class_names=("a",)), Path("data"))


def test_the_splits_of_a_data_set_are_not_its_classes(pets, samples_params):
    Path("data/set/train").mkdir(parents=True)
    pets.rename("data/set/val")
    message = r"data/set holds train, val, which look like the splits.*name one of them, such as data/set/val"
    Path("data/set/train/cat").mkdir()
    with pytest.raises(EnginewrightError, match=message):
        open_source(samples_params("data/set"), Path("data"))
    assert len(open_source(samples_params("data/set/val"), Path("data"))) == 3


def test_a_class_may_be_called_train_and_classes_may_have_like_folders(pets, samples_params):
    Path("data/pets/dog").rename("data/pets/train")
    Path("data/pets/train/deeper").mkdir()
    assert open_source(samples_params(), Path("data")).class_names == ("cat", "train")


def test_a_link_that_leaves_the_data_is_refused(pets, samples_params, tmp_path):
    Path("data/pets/dog/1.png").rename(tmp_path / "outside.png")
    Path("data/pets/dog/2.png").symlink_to(tmp_path / "outside.png")
    with pytest.raises(EnginewrightError, match=r"data/pets/dog/2\.png is a link out of data/"):
        open_source(samples_params(), Path("data"))


def test_other_files_are_no_source(pets, samples_params):
    with pytest.raises(EnginewrightError, match=r"data/pets/cat/notes\.txt is none of what can be read; give 'digits'"):
        open_source(samples_params("data/pets/cat/notes.txt"), Path("data"))
