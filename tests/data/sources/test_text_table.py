"""Texts in CSV files, JSON lines and plain files."""

import re
from pathlib import Path

import numpy as np
import pytest
from support.texts import write_tokenizer

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import SamplesParams
from enginewright.data.sample_set import SampleSet
from enginewright.data.sources import open_source
from enginewright.data.splits import write_split
from enginewright.tasks.choose import known_of

ABOUT = {"seed": 0, "validation": 1, "training": 0, "calibration": 1, "preprocessing": None}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_tokenizer(Path("data/texts/tokenizer.json"))


def opened(name, content, task="classification", **text):
    Path("data/texts", name).write_bytes(content if isinstance(content, bytes) else content.encode())
    how = {"tokenizer": "data/texts/tokenizer.json", "longest": 8, "multiple_of": 4} | text
    params = SamplesParams(source=f"data/texts/{name}", text=how, **ABOUT)
    return open_source(params, Path("data/images"), known_of(task), Path("data/texts")), params


@pytest.mark.parametrize(
    ("name", "content", "task", "rows", "known"),
    [
        ("a.csv", "text,label\none,b\n\"two,\nmore\",a\n", "classification", [("one",), ("two,\nmore",)], [1, 0]),
        ("a.csv", "\ufefflabel,text\n1,one\n0,two\n", "classification", [("one",), ("two",)], [1, 0]),
        ("a.csv", "text_a,text_b,label\nq,r,no\ns,t,yes\n", "classification", [("q", "r"), ("s", "t")], [0, 1]),
        ("a.csv", "text_a,text_b,score\nq,r,0.5\n", "embedding", [("q", "r")], [0.5]),
        ("a.csv", "text,target,target\nq,1,2\n", "regression", [("q",)], [[1, 2]]),
        ("a.jsonl", '{"text": "p", "label":1}\n\n{"text": "q", "label":0}', "classification", [("p",), ("q",)], [1, 0]),
        ("a.jsonl", '{"text_a": "q", "text_b": "r", "target": 2.5}', "regression", [("q", "r")], [[2.5]]),
        ("a.csv", "text_a,text_b,target\nq,r,1\n", "ranking", [("q", "r")], [[1, 0]]),
        ("a.csv", "text_a,text_b,target\nr,1,1\nq,2,0\nr,3,0\n", "ranking", None, [[1, 1], [0, 0], [0, 1]]),
        ("a.csv", "text,question,target\nq: 1,q,1\nr: 2,r,0\n", "ranking", None, [[1, 0], [0, 1]]),
        ("a.txt", "one\n\ntwo\r\n", "embedding", [("one",), ("two",)], None),
    ],
)  # fmt: skip
def test_texts_are_read_with_what_is_known_of_them(name, content, task, rows, known):
    source, _ = opened(name, content, task)
    truth = source.labels if source.truths is None else source.truths.rows.tolist()
    assert (rows or list(source.rows), truth) == (list(source.rows), known)


@pytest.mark.parametrize(
    ("name", "content", "task", "told"),
    [
        ("a.csv", "text,label\none,1\ntwo\n", "classification", "a.csv, line 3, has 1 cells, and the header has 2"),
        ("a.csv", "text,label\none,1\n ,0\n", "classification", "a.csv, line 3, text is empty"),
        ("a.csv", "text,label\none,1\ntwo,\n", "classification", "a.csv, line 3, has no label"),
        ("a.csv", "words\none\n", "classification", "needs a column text, or the two text_a and text_b"),
        ("a.csv", "text_a\none\n", "classification", "text_b is missing"),
        ("a.csv", "text\n", "classification", "holds no samples"),
        ("a.csv", 'text\n"one\n', "classification", "is not CSV"),
        ("a.csv", b"text\n\xff\n", "classification", "is not a text file in UTF-8"),
        ("a.csv", "text_a,text_b\nq,r\n", "embedding", "needs a column score"),
        ("a.csv", "text_a,text_b,score\nq,r,high\n", "embedding", "line 2, has the score 'high', which is no finite"),
        ("a.jsonl", '{"text": "one"}\n{"text": ', "classification", "a.jsonl, line 2, is not JSON"),
        ("a.jsonl", '{"text": "one"}\n["two"]', "classification", "line 2, is no JSON object"),
        ("a.jsonl", '{"text": "one"}\n{"text": 2}', "classification", "line 2, text is 2, and no text"),
        ("a.jsonl", '{"text": "a", "target": [1, 2]}\n{"text": "b", "target": 1}', "regression", "line 2, has another"),
        ("a.parquet", "", "classification", "is no file of texts: give one of .csv, .jsonl, .txt"),
    ],
)
def test_a_broken_file_is_refused_with_its_line(name, content, task, told):
    with pytest.raises(EnginewrightError, match=re.escape(told)):
        opened(name, content, task)


def test_texts_become_arrays_by_our_settings_and_not_by_those_in_the_tokenizers_file():
    """The file truncates to 3 tokens and pads to 50."""
    rows = ["word0", "word1 word2 word3", " ".join(["word4"] * 30)]
    inputs = ("input_ids", "attention_mask", "token_type_ids")
    source, params = opened("a.txt", "\n".join(rows), inputs=inputs, dtype="int32")
    write_split(source, [2, 0, 1], params, Path("split"))
    samples = SampleSet.open(Path("split"))
    assert (samples.lengths.tolist(), samples.manifest.text.cut, samples.manifest.text.vocabulary) == ([8, 3, 5], 1, 50)
    assert samples.read_at(np.array([1]))["input_ids"].tolist() == [[2, 4, 3, 0]]
    both = samples.read_at(np.array([1, 2]))
    assert both["input_ids"].tolist() == [[2, 4, 3, 0, 0, 0, 0, 0], [2, 5, 6, 7, 3, 0, 0, 0]]
    assert both["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
    assert {array.dtype.name for array in both.values()} == {"int32"}
    assert [places.tolist() for places in samples.places(np.arange(3), 2, whole=True)] == [[0, 2], [1, 1]]


def test_two_texts_that_are_one_input_have_types():
    source, params = opened("a.csv", "text_a,text_b\nword0,word1 word2\n", inputs=("ids", "type_ids"))
    write_split(source, [0], params, Path("split"))
    feeds = SampleSet.open(Path("split")).read_at(np.array([0]))
    assert feeds["ids"].tolist() == [[2, 4, 3, 5, 6, 3, 0, 0]]
    assert feeds["type_ids"].tolist() == [[0, 0, 0, 1, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ({"tokenizer": "data/texts/none.json"}, "data/texts/none.json does not exist; give a tokenizer.json"),
        ({"tokenizer": "data/texts/a.txt"}, "is no tokenizer.json of the library tokenizers"),
        ({"padding": "<nothing>"}, "tokenizer.json knows no token <nothing>: name one of its tokens to pad with"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(text, told):
    def write():
        source, params = opened("a.txt", "one", **text)
        write_split(source, [0], params, Path("split"))

    with pytest.raises(EnginewrightError, match=re.escape(told)):
        write()
