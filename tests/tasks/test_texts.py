"""Texts, from the user's files to validation, and to the command `enginewright infer`."""

import csv
import io
import json
import re
import sys
import types
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest
from support.command import run_here
from support.small_project import PER_PRECISION, STAGES, TINY, lay_over, run_stages, small_project
from support.texts import texts, write_tokenizer

from enginewright.bundle.write import settings_for_bundle
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.core.params.samples import TextPreprocessing
from enginewright.data import texts as texts_module
from enginewright.data.sample_set import PreparedTexts, SampleSet
from enginewright.data.texts import TextReader
from enginewright.engine.engine import open_engine
from enginewright.engine.record import EngineRecord
from enginewright.graph.read_interface import require_fitting_vocabulary
from enginewright.measure.examples import Examples
from enginewright.measure.records import Validation

NETWORK = """
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.words, self.last = nn.Embedding(50, 16), nn.Linear(16, 8)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        seen = attention_mask[:, None, None, :].bool()
        x = nn.functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], attn_mask=seen)[:, 0]
        weights = attention_mask.unsqueeze(-1).float()
        states = self.last(x)
        return {"states": states, "vector": (states * weights).sum(1) / weights.sum(1)}


class Reranker(Encoder):
    def forward(self, input_ids, attention_mask):
        return {"score": super().forward(input_ids, attention_mask)["vector"].sum(1, keepdim=True)}
"""
RNG = np.random.default_rng(0)
RECIPE = """
task: embedding
model: {source: "encoders:Encoder"}
weights: {source: given}
build: {profile: {axes: {sequence: {min: 4, opt: 8, max: 16}}}}
samples:
  source: data/texts/pairs.csv
  preprocessing: null
  text: {tokenizer: data/texts/tokenizer.json, longest: 16, multiple_of: 4}
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    root = small_project(tmp_path, monkeypatch, "int8")
    Path("encoders.py").write_text(NETWORK)
    monkeypatch.delitem(sys.modules, "encoders", raising=False)
    write_tokenizer(Path("data/texts/tokenizer.json"))
    with Path("data/texts/pairs.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text_a", "text_b", "score"])
        rows.writerows(zip(texts(40), texts(40, seed=1), np.random.default_rng(0).random(40), strict=True))
    lay_over(RECIPE, TINY)
    return root


def test_an_encoder_of_texts_gives_the_same_numbers_everywhere(project, monkeypatch, capsys):
    run_stages(monkeypatch, *STAGES, *PER_PRECISION[: PER_PRECISION.index("validate") + 1])
    record, found = (
        EngineRecord.read(Path("artifacts/engines/int8/engine.json")),
        Validation.read(Path("reports/validation/int8.json")),
    )
    assert (found.samples, found.main.name, record.executed["int8"] > 0) == (48, "Spearman", True)
    assert found.engine_against_pytorch.relative < 0.05  # of a model whose mask is minus infinity
    assert record.text.cut > 0
    example = Examples.read(Path("reports/examples/int8/examples.json")).examples[0]
    assert (example.file, " word" in example.text) == (None, True)
    assert re.fullmatch(r"nearest text, cosine [\d.-]+ \(by the engine [\d.-]+\): .* word.*", example.engine)
    samples = SampleSet.open(Path("artifacts/samples/validation"))
    assert record.files["tokenizer.json"] == samples.manifest.text.tokenizer_sha256
    given = ["word3 word4 word5", "word7 " * 30]
    with open_engine(Path("artifacts/engines/int8"), None, Params.read().inference) as engine:
        ids = np.array([[2, 7, 8, 9, 3, 0, 0, 0]])
        wanted = engine.run({"input_ids": ids, "attention_mask": (ids > 0).astype(np.int64)})["vector"][0]
    Path("more.jsonl").write_text(json.dumps({"text": given[1]}))
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{given[0]}\n\n"))
    capsys.readouterr()
    assert run_here("infer", "artifacts/engines/int8", given[0], "more.jsonl", "-", "--batch", 1, "--json") == 0
    told = capsys.readouterr()
    answers = [json.loads(line) for line in told.out.splitlines()]
    assert [answer["text"] for answer in answers] == [*given, given[0]]
    np.testing.assert_allclose(answers[0]["vector"], wanted, rtol=1e-5)
    assert "cut: 1 of 3 texts" in told.err


def test_a_reranker_is_judged_by_the_order_of_the_answers_to_each_question(project, monkeypatch, capsys):
    lay_over("task: ranking\nmodel: {source: 'encoders:Reranker'}")
    rows = zip(np.repeat(texts(10, seed=2, most=4), 5), texts(50, seed=1, most=6), RNG.integers(0, 3, 50), strict=True)
    lines = [json.dumps({"text_a": str(one), "text_b": other, "target": int(known)}) for one, other, known in rows]
    Path("data/texts/pairs.jsonl").write_text("\n".join(lines))
    lay_over("samples: {source: data/texts/pairs.jsonl, validation: 30, calibration: 10}")
    run_stages(monkeypatch, *STAGES, *PER_PRECISION[: PER_PRECISION.index("validate") + 1])
    found = Validation.read(Path("reports/validation/int8.json"))
    assert [(each.name, each.samples <= 6) for each in found.results] == [("Spearman", True), ("nDCG@10", True)]
    assert (found.agreement.name, found.agreement.among) == ("order agreement", "the pairs of 30 texts")
    examples = Examples.read(Path("reports/examples/int8/examples.json")).examples
    assert all(re.fullmatch(r"score -?[\d.e-]+, place [1-5] of 5", each.engine) for each in examples)
    capsys.readouterr()
    assert run_here("infer", "artifacts/engines/int8", "data/texts/pairs.jsonl", "--batch", 4, "--json") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["text"][0] for each in answers] == [json.loads(line)["text_a"] for line in lines]
    scores = np.array([each["score"] for each in answers]).reshape(10, 5)
    assert (np.diff(scores) <= 0).all()


def test_the_bundle_reads_texts_by_the_same_code(project):
    how = Params.read().samples.text
    code = types.ModuleType("tokenization")
    exec(Path(texts_module.__file__).read_text(), code.__dict__)
    plain = types.SimpleNamespace(**json.loads(settings_for_bundle(how)))
    file = Path("data/texts/tokenizer.json")
    given = [(one,) for one in texts(9)]
    readers = TextReader(file, how), code.TextReader(file, plain)
    found = [reader.arrays(reader.tokens(given)) for reader in readers]
    assert found[0].keys() == found[1].keys()
    assert all(np.array_equal(array, found[1][name]) for name, array in found[0].items())


@pytest.mark.parametrize(
    ("count", "spare", "told"),
    [
        (200, False, "knows 204 tokens, and the model's embedding has 150 rows: it is the tokenizer of another model"),
        (10, False, "knows 14 tokens, and the model's embedding has 150 rows: it is likely the tokenizer of another"),
        (10, True, None),
        (146, False, None),
    ],
)
def test_a_tokenizer_of_another_vocabulary_is_refused(count, spare, told, tmp_path, monkeypatch):
    graph = onnx.parser.parse_graph(
        "g (int64[N, L] input_ids) => (float[N, L, D] y) <float[150, 4] t> "
        "{ i = Cast <to = 7> (input_ids) y = Gather (t, i) }"
    )
    graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((150, 4), np.float32), "t"))
    monkeypatch.setattr("enginewright.graph.read_interface.FEW", 20)
    how = TextPreprocessing(tokenizer="t.json", spare_rows=spare)
    reader = TextReader(write_tokenizer(tmp_path / "t.json", [f"w{n}" for n in range(count)]), how)
    prepared = PreparedTexts(how=how, tokenizer_sha256="", vocabulary=reader.vocabulary, cut=0, together=1)
    with pytest.raises(EnginewrightError, match=told) if told else nullcontext():
        require_fitting_vocabulary(onnx.helper.make_model(graph), prepared)
