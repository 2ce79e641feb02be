"""Outputs of texts of different lengths."""

import numpy as np
import pytest
from support.texts import texts, write_tokenizer

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import SamplesParams
from enginewright.data.run_all import outputs_here, run_all
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources.tables import Texts
from enginewright.data.splits import write_split


def sample_set(folder, longest=16, multiple_of=4, count=21):
    params = SamplesParams(
        source="texts", seed=0, validation=1, training=0, calibration=1, preprocessing=None,
        text={"tokenizer": "tokenizer.json", "longest": longest, "multiple_of": multiple_of},
    )  # fmt: skip
    source = Texts("texts", write_tokenizer(folder / "tokenizer.json"), [(one,) for one in texts(count)], None, ())
    write_split(source, range(count), params, folder / "split")
    return SampleSet.open(folder / "split")


def model(feeds):
    """Return a state for each token, not zero for padding either, and a vector of which padding is no part."""
    ids, mask = feeds["input_ids"], feeds["attention_mask"]
    states = ids[:, :, None] * np.array([1.0, 2.0, 3.0]) + 7
    return {"states": states, "vector": (states * mask[:, :, None]).sum(1), "pairs": ids[:, :, None] + ids[:, None]}


@pytest.mark.parametrize("multiple_of", [4, 16], ids=["by length", "all of one length"])
@pytest.mark.parametrize("whole", [False, True])
def test_outputs_come_in_the_order_of_the_texts_with_zeros_for_padding(tmp_path, monkeypatch, whole, multiple_of):
    monkeypatch.chdir(tmp_path)
    samples = sample_set(tmp_path, multiple_of=multiple_of)
    found = run_all(outputs_here(model), samples, 4, whole)
    assert found["states"].shape == (21, 16, 3)
    for place, length in enumerate(samples.lengths):
        alone = model(samples.read_at(np.array([place])))
        assert np.array_equal(found["states"][place, :length], alone["states"][0, :length])
        assert not found["states"][place, length:].any()
        assert np.array_equal(found["vector"][place], alone["vector"][0])
        if multiple_of == 4:
            assert not found["pairs"][place, :, length:].any()
    chosen = np.array([3, 20, 3])
    again = run_all(outputs_here(model), samples, 2, whole, chosen=chosen)["vector"]
    assert np.array_equal(again, found["vector"][chosen])


def test_outputs_of_other_samples_than_were_asked_for_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one = outputs_here(lambda feeds: {"vector": model(feeds)["vector"][None]})
    with pytest.raises(EnginewrightError, match="output vector has 1 rows for 4 samples"):
        run_all(one, sample_set(tmp_path), 4, whole=True)
