"""Arrays that are fed as they are."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources import open_source
from enginewright.data.splits import write_split

NPZ = Path("data/set.npz")
IDS, MASK = np.arange(10, dtype=np.int64).reshape(5, 2), np.ones((5, 3), bool)


@pytest.fixture
def params(tmp_path, monkeypatch, samples_params):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    return lambda path=NPZ, **changes: samples_params(str(path), preprocessing=None, **changes)


def opened(params):
    return open_source(params, Path("data"))


@pytest.mark.parametrize("labels", [np.array([0, 2, 1, 2, 0]), np.array(["a", "c", "b", "c", "a"])])
def test_the_arrays_are_the_inputs_and_labels_are_labels(params, labels):
    np.savez(NPZ, ids=IDS, mask=MASK, labels=labels)
    source = opened(params())
    assert source.inputs == ("ids", "mask")
    assert len(source) == 5
    assert source.class_names == (("0", "1", "2") if labels.dtype.kind == "i" else ("a", "b", "c"))


def test_an_array_alone_is_what_the_only_input_takes(params):
    np.save(Path("data/set.npy"), IDS)
    source = opened(params("data/set.npy", input="ids"))
    assert (source.inputs, len(source), source.labels) == (("ids",), 5, None)
    write_split(source, [3], params(), Path("split"))
    assert SampleSet.open(Path("split")).cycled(1)["ids"].tolist() == [[6, 7]]


def test_a_split_is_read_back_as_it_came(params):
    np.savez(NPZ, ids=IDS, mask=MASK, labels=np.array([0, 2, 1, 2, 0]))
    write_split(opened(params()), [3, 0], params(), Path("split"))
    samples = SampleSet.open(Path("split"))
    feeds = samples.read_at(np.array([0, 1]))
    assert list(feeds) == ["ids", "mask"]
    assert feeds["ids"].tolist() == [[6, 7], [0, 1]]
    assert (feeds["ids"].dtype, feeds["mask"].dtype) == (np.int64, np.bool_)
    assert samples.labels.tolist() == [2, 0]
    assert [sample.name for sample in samples.manifest.samples] == ["set.npz/000003", "set.npz/000000"]
    assert samples.manifest.preprocessing is None


def test_arrays_without_labels_have_only_the_classes_that_are_listed(params):
    np.savez(NPZ, ids=IDS)
    assert opened(params()).class_names == ()
    assert opened(params(class_names=("cat", "dog"))).class_names == ("cat", "dog")
    write_split(opened(params()), [0], params(), Path("split"))
    assert SampleSet.open(Path("split")).labels is None


def test_an_empty_split_keeps_the_shape_of_its_samples(params):
    np.savez(NPZ, ids=IDS, mask=MASK)
    write_split(opened(params()), [], params(), Path("split"))
    zeros = SampleSet.open(Path("split")).cycled(2)
    assert {name: (array.shape, array.dtype.name) for name, array in zeros.items()} == {
        "ids": ((2, 2), "int64"),
        "mask": ((2, 3), "bool"),
    }


def test_another_machines_byte_order_is_read(params):
    np.savez(NPZ, x=np.array([[1.5, 2], [3, 4]], ">f4"))
    write_split(opened(params()), [1, 0], params(), Path("split"))
    read = SampleSet.open(Path("split")).cycled(2)["x"]
    assert (read.tolist(), read.dtype.isnative) == ([[3, 4], [1.5, 2]], True)


def test_the_hash_of_a_sample_covers_all_its_inputs(params):
    np.savez(NPZ, ids=np.zeros((3, 2), np.int64), mask=np.array([[True], [False], [True]]))
    write_split(opened(params()), [0, 1, 2], params(), Path("split"))
    first, second, third = (sample.sha256 for sample in SampleSet.open(Path("split")).manifest.samples)
    assert first == third != second


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.arange(5)}, "holds no array but labels; it needs one for each input"),
        (
            {"x": np.zeros((5, 2))},
            r"x of .* is float64 of shape \(5, 2\); inputs are float32, int32, int64, bool, with",
        ),
        ({"x": np.float32(1)}, r"x of .* is float32 of shape \(\); "),
        ({"x": np.zeros((0, 2), np.float32)}, r"x of .* is float32 of shape \(0, 2\); "),
        ({"x": np.array(["a", "b"])}, r"x of .* is <U1 of shape \(2,\); "),
        ({"x": np.array([None, 1])}, "cannot be read as a NumPy file: .*Python objects in dtype"),
        ({"ids": IDS, "mask": MASK[:4]}, "have different numbers of samples: ids 5, mask 4"),
        ({"ids": IDS, "labels": np.arange(4)}, r"the labels of .* are int64 of shape \(4,\)"),
        (
            {"ids": IDS, "labels": np.ones(5)},
            "the labels of .* must be whole numbers or names",
        ),
        (
            {"ids": IDS, "labels": np.int64(3)},
            "the labels of .* must be whole numbers or names",
        ),
        ({"ids": IDS, "labels": np.ones((5, 1), int)}, "the labels of .* must be whole numbers or names"),
        ({"ids": IDS, "labels": np.array([0, 1, 2, -1, 0])}, "set.npz, sample 3, gives the label '-1', which is not"),
    ],
)
def test_what_cannot_be_fed_is_refused(params, arrays, message):
    np.savez(NPZ, **arrays)
    with pytest.raises(EnginewrightError, match=rf"samples\.source: .*{message}"):
        opened(params())


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_a_sample_that_is_no_number_is_named(params, value):
    values = np.ones((4, 2), np.float32)
    values[2, 1] = value
    np.savez(NPZ, x=values)
    write_split(opened(params()), [0, 1, 3], params(), Path("split"))  # it is in no split
    with pytest.raises(EnginewrightError, match=r"samples\.source: x of set\.npz is NaN or infinite in sample 2"):
        write_split(opened(params()), [0, 2], params(), Path("other"))
    assert not Path("other").exists()


def test_a_set_is_not_loaded_to_be_split(params):
    """Measured by tracemalloc, which counts what NumPy allocates, but no maps."""
    np.savez(NPZ, x=np.ones((2000, 4096), np.float32))  # 33 MB
    tracemalloc.start()
    write_split(opened(params()), range(1500), params(), Path("split"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4e6
    assert len(SampleSet.open(Path("split")).read_at(np.arange(1500))["x"]) == 1500


def test_a_broken_file_and_another_kind_are_refused(params):
    single = Path("data/single.npy")
    np.save(single, IDS)
    for content in (b"PK\x03\x04 and no more", b"hello", single.read_bytes()):
        NPZ.write_bytes(content)
        with pytest.raises(EnginewrightError, match=r"samples\.source: data/set\.npz cannot be read as a NumPy file"):
            opened(params())
    Path("data/images").mkdir()
    with pytest.raises(
        EnginewrightError, match=r"data/images is no \.npz of these, and no \.npy; images need samples\.preprocessing"
    ):
        opened(params("data/images"))
