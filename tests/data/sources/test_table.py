"""CSV files of paths and labels."""

from pathlib import Path

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.data.sources import open_source

TABLE = Path("data/images.csv")


@pytest.fixture
def opened(pets, samples_params):
    def write(text, **changes):
        TABLE.write_text(text, "utf-8", newline="")
        return open_source(samples_params(str(TABLE), **changes), Path("data"))

    return write


@pytest.fixture
def labels(opened, preprocessing):
    def read(text, **changes):
        source = opened(text, **changes)
        found = [source.prepare(index, preprocessing).sample for index in range(len(source))]
        return [sample.label for sample in found], source.class_names

    return read


def test_names_count_in_alphabetical_order(labels):
    assert labels("path,label\npets/dog/1.png,dog\npets/cat/b.JPG,cat\n") == ([1, 0], ("cat", "dog"))


def test_numbers_count_from_zero_to_the_largest(labels):
    assert labels("path,label\npets/dog/1.png,3\npets/cat/b.JPG,0\n") == ([3, 0], ("0", "1", "2", "3"))


@pytest.mark.parametrize("written", [("dog", "cat"), ("1", "0")])
def test_names_and_numbers_mean_places_in_the_list(labels, written):
    table = "path,label\npets/dog/1.png,{}\npets/cat/b.JPG,{}\n".format(*written)
    assert labels(table, class_names=("cat", "dog", "bird")) == ([1, 0], ("cat", "dog", "bird"))


@pytest.mark.parametrize("places", [("0.0", "11.0"), ("0.", "11.00"), ("0", "11.0")], ids=str)
def test_whole_numbers_may_be_written_with_a_fraction(labels, places):
    """pandas writes them so if a column had gaps. Sorted as names they would be 0.0, 1.0, 10.0, 11.0, 2.0."""
    table = "path,label\npets/dog/1.png,{}\npets/cat/b.JPG,{}\n".format(*places)
    assert labels(table) == ([0, 11], tuple(map(str, range(12))))
    assert labels(table, class_names=tuple("abcdefghijkl"))[0] == [0, 11]


def test_numbers_that_are_names_are_names(labels):
    assert labels("path,label\npets/dog/1.png,7\n", class_names=("3", "7")) == ([1], ("3", "7"))


def test_paths_without_labels_are_enough(labels):
    assert labels("path\npets/dog/1.png\n") == ([None], ())


def test_what_a_spreadsheet_writes_is_read(labels):
    table = '\ufeffpath, label\r\n"pets/dog/1.png","dog, big"\r\n\r\npets/../pets/cat/b.JPG, cat \r\n'
    assert labels(table) == ([1, 0], ("cat", "dog, big"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no samples"),
        ("path,label\n", "holds no samples"),
        ("pets/dog/1.png,dog\na,b\n", "path,label or path, and not with pets/dog/1.png,dog"),
        ("path;label\npets/dog/1.png;dog\n", "path,label or path, and not with path;label"),
        ("file,label\npets/dog/1.png,dog\n", "path,label or path, and not with file,label"),
        ("path,label\npets/dog/1.png\n", "line 2, has 1 cells, and the header has 2"),
        ("path,label\npets/dog/1.png,dog,1\n", "line 2, has 3 cells, and the header has 2"),
        (
            "path,label\n\npets/dog/1.png,dog\npets/dog/9.png,dog\n",
            "line 4, names 'pets/dog/9.png', but data/pets/dog/",
        ),
        ("path,label\npets/dog,dog\n", "line 2, names 'pets/dog', but data/pets/dog is not a file"),
        ("path,label\n,dog\n", "line 2, names '', but data is not a file"),
        ("path,label\npets/dog/1.png,\n", "line 2, has no label; samples without any need a file without that column"),
        ("path\npets/dog/1.png\npets/cat/../dog/1.png\n", "line 3, names data/pets/cat/../dog/1.png, as line 2 does"),
        ("path\n../secret.png\n", "line 2, names '../secret.png', which lies outside data/: DVC would not see it"),
        ("path\n/etc/passwd\n", "line 2, names '/etc/passwd', which lies outside data/"),
        ("path\nlink.png\n", "line 2, names 'link.png', which lies outside data/"),
        ("path,label\npets/dog/1.png,-1\n", "line 2, gives the label '-1', which is not from 0 to 0"),
        ("path,label\npets/dog/1.png,1000000000\n", "gives the label '1000000000', which is not from 0 to 100000"),
        (
            "path,label\npets/dog/1.png,0\npets/cat/b.JPG,0.5\n",
            "line 3, gives the label '0.5': label all with",
        ),
        (f"path,label\npets/dog/1.png,{'9' * 5000}\n", "9', which is not from 0 to 100000"),
        (
            "path,label\npets/dog/1.png,1\npets/cat/b.JPG,cat\n",
            "line 3, gives the label 'cat': label all with",
        ),
        ('path,label\n"pets/dog/1.png,dog\n', "line 2, is not CSV: unexpected end of data"),
    ],
)
def test_a_mistake_is_named_with_its_line(opened, text, message):
    Path("secret.png").write_bytes(Path("data/pets/dog/1.png").read_bytes())
    Path("data/link.png").symlink_to(Path("secret.png").resolve())
    with pytest.raises(EnginewrightError) as caught:
        opened(text)
    assert str(caught.value).startswith("samples.source: data/images.csv")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("2", "line 2, gives the label '2', which is not from 0 to 1"),
        ("0.5", "line 2, gives the label '0.5', which is not from 0 to 1"),
        ("bird", "line 2, gives the label 'bird', which is not one of the 2 in samples.class_names"),
    ],
)
def test_a_label_outside_the_list_is_refused(opened, label, message):
    with pytest.raises(EnginewrightError, match=message):
        opened(f"path,label\npets/dog/1.png,{label}\n", class_names=("cat", "dog"))


def test_a_table_in_another_encoding_is_refused(opened, pets, samples_params):
    TABLE.write_bytes("path,label\npets/dog/1.png,größer\n".encode("latin-1"))
    with pytest.raises(EnginewrightError, match=r"images\.csv is not a text file in UTF-8"):
        open_source(samples_params(str(TABLE)), Path("data"))
