"""Which precision the report recommends, and with which doubts."""

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.findings import summary_of

from enginewright.measure.records import RacedPair
from enginewright.report import tables, where_time_goes
from enginewright.report.metrics import metrics
from enginewright.report.verdict import AS_FAST, choose, recommend, sentence


@pytest.mark.parametrize(
    ("precisions", "chosen"),
    [
        ({"fp32": {"ratio": (1.5, 1.4, 1.6)}, "int8": {"ratio": (4.0, 3.8, 4.2)}}, "int8"),
        (
            {
                "fp32": {"ratio": (1.0, 0.9, 1.1), "relative": 1e-6},
                "bf16": {"ratio": (4.1, 4.09, 4.11), "relative": 0.004},
                "int8": {"ratio": (4.2, 4.19, 4.21), "relative": 0.02},
            },
            "bf16",
        ),
        ({"fp32": {"ratio": (1.5, 1.4, 1.6)}, "int8": {"ratio": (4.0, 3.8, 4.2), "broken": ("cosine 0",)}}, "fp32"),
        ({"fp32": {"ratio": (1.5, 1.4, 1.6)}, "fp16": {"ratio": (4.0, 3.8, 4.2), "executed": "fp32"}}, "fp32"),
    ],
    ids=["the fastest", "of those as fast the closest", "not one that failed", "not one that ran as another type"],
)
def test_the_fastest_precision_that_may_be_shipped_is_recommended(findings, evidence, precisions, chosen):
    """A CPU without fp16 units runs fp16 as fp32: that it may look faster is noise."""
    found = findings(*(evidence(name, **about) for name, about in precisions.items()))
    assert recommend(found).precision == chosen


def test_where_none_passed_none_is_recommended(findings, evidence):
    nothing = findings(evidence("fp32", broken=("a",)), evidence("int8", broken=("b",)))
    assert recommend(nothing) is None
    assert sentence(nothing) == "**Ship none of them:** no precision stayed within its thresholds."
    assert metrics(nothing)["recommended"] == "none"


def test_the_sentence_gives_speed_accuracy_and_size(findings, evidence):
    text = sentence(findings(evidence("int8", (4.0, 3.85, 4.2))))
    assert text == (
        "**Ship int8:** 4.00 times as fast as PyTorch eager at batch 8 (3.85 to 4.20 within this run), "
        "accuracy 97.53% where PyTorch has 98.76%, and the same answer as PyTorch for 96.88% of 512 images. "
        "The engine takes 12.3 MB."
    )


def test_speeds_are_quoted_at_the_tuned_batch_or_else_at_the_largest_raced(findings, evidence):
    assert findings(evidence("int8")).race.batch == 8
    assert findings(evidence("int8", batches=(1, 4, 2))).race.batch == 4


def test_where_engines_cannot_be_told_apart_none_is_named_and_one_is_offered(findings, evidence):
    found = findings(
        evidence("fp32", (2.0, 1.5, 2.6)), evidence("int8", (2.2, 1.9, 2.5)), evidence("bf16", (1.0, 0.9, 1.1))
    )
    assert recommend(found) is None
    assert sentence(found).startswith(
        "**Measure again:** int8 and fp32 cannot be told apart on this machine today: int8 0.73 to 1.67 times as fast "
        "as fp32. Run it when it is idle: `dvc repro --force --single-item race && dvc repro`. Meanwhile int8 is"
    )
    assert "Ship" not in sentence(found)
    assert metrics(found)["recommended"] == "undecided"


def that_loses(entry, drop, size):
    main = entry.validation.results[0].model_copy(update={"drop": drop})
    validation = entry.validation.model_copy(update={"results": (main,)})
    return replace(entry, validation=validation, engine=entry.engine.model_copy(update={"bytes": size}))


def test_what_is_offered_is_more_accurate_or_else_smaller(findings, evidence):
    def offered(**drops):
        entries = [evidence(name, (2.0, 1.5, 2.6)) for name in drops]
        numbered = enumerate(zip(entries, drops.values(), strict=True))
        return sentence(findings(*(that_loses(entry, drop, 9_000_000 - number) for number, (entry, drop) in numbered)))

    assert "Meanwhile fp32 is offered, whose accuracy is the best of them." in offered(fp32=0.0, int8=0.01)
    assert "Meanwhile int8 is offered, whose engine is the smallest of them, 9.0 MB." in offered(fp32=0.0, int8=0.0)
    of_three = offered(fp32=0.0, bf16=0.0, int8=0.01)  # of which int8 is the smallest
    assert "bf16 is offered, whose engine is the smallest of those that lose the least accuracy, 9.0 MB." in of_three


def test_on_a_disturbed_machine_an_engine_must_win_by_more(findings, evidence):
    close = evidence("fp32", (1.0, 0.99, 1.01)), evidence("int8", (1.1, 1.09, 1.11))
    assert recommend(findings(*close)).precision == "int8"
    busy = "other programs took 0.8 of 2 cores"
    text = sentence(findings(*close, disturbed=(busy,)))
    surely = ", beside which only what is surely more than 1.1 times as fast counts"
    assert (
        f"cannot be told apart on this machine today ({busy}{surely}): int8 1.08 to 1.12 times as fast as fp32" in text
    )
    far = findings(close[0], evidence("int8", (2.0, 1.9, 2.1)), disturbed=(busy,))
    assert sentence(far).endswith(f"During the race {busy}: the choice holds, and figures may move.")


def test_pairs_decide_and_not_ratios_to_pytorch(findings, evidence):
    """Other programs stopped PyTorch in some rounds, and the engines in others, when this was measured."""
    found = findings(evidence("fp32", (313, 8, 452), relative=1e-6), evidence("int8", (299, 12, 691)))
    others = tuple(pair for pair in found.race.pairs if {pair.one, pair.other} != {"fp32", "int8"})
    slower = RacedPair(one="fp32", other="int8", median=0.67, low=0.6, high=0.72)
    found = replace(found, race=found.race.model_copy(update={"pairs": (*others, slower)}))
    assert recommend(found).precision == "int8"
    assert "It is the fastest of the 2 precisions that may be shipped, 1.49 times" in summary_of(found)


class LeftOut(pd.DataFrame):
    """A table that takes no time to write."""

    def to_markdown(self, *_, **__):
        return "left out"


@pytest.mark.parametrize("seed", range(40))
def test_no_two_sentences_of_a_report_disagree(findings, evidence, seed, monkeypatch):
    """Whatever was measured, however noisy or contradictory: 2,000 races of pairs that need not fit together. Tables
    that know nothing of a race are left out, which would take most of the time."""
    left_out = LeftOut()
    for name in ("accuracy_table", "blame_table", "executed_table", "latencies", "throughputs", "memory_table"):
        monkeypatch.setattr(tables, name, lambda _: left_out)
    monkeypatch.setattr(where_time_goes, "slowest_layers", lambda *_: [])
    random = np.random.default_rng(seed)
    entries = [evidence(name, relative=error) for name, error in (("fp32", 1e-6), ("bf16", 4e-3), ("int8", 2e-2))]
    merits = zip(entries, random.choice([0.0, 0.002], 3), 9_000_000 + random.permutation(3), strict=True)
    usual = findings(*(that_loses(entry, float(drop), int(size)) for entry, drop, size in merits))
    for _ in range(50):
        spread, noise = random.choice([0.01, 0.1, 0.7]), random.choice([0.005, 0.05, 0.5])
        pairs = []
        for pair in usual.race.pairs:
            middle = np.exp(random.normal(0, spread))
            low, high = middle * np.exp(-noise * random.random()), middle * np.exp(noise * random.random())
            pairs.append(pair.model_copy(update={"median": middle, "low": low, "high": high}))
        disturbed = ("other programs took 0.8 of 2 cores",) if random.random() < 0.3 else ()
        race = usual.race.model_copy(update={"pairs": tuple(pairs), "disturbed": disturbed})
        require_agreement(replace(usual, race=race))


def require_agreement(found):
    """Hold all sentences against the race: who is the fastest, by how much, and that each figure is in the table."""
    said, choice = summary_of(found), choose(found)
    told = said.partition("## Accuracy")[0]
    table = said.partition("## The race")[2].partition("## Latency")[0]
    named = re.findall(r"\*\*Ship (\w+):", told)
    assert named == ([choice.engine.precision] if choice.is_sure else [])
    for one in named:  # what is shipped is beaten by no other, and by none that "is as fast"
        assert all(found.race.times(each.precision, one).median <= AS_FAST for each in found.precisions)
    for factor in re.findall(r"It is the fastest of .*?, ([\d.]+) times", told):
        assert float(factor) >= 1
        assert choice.is_sure
    for slow, fast, factor in re.findall(r"\*\*(\w+) does not pay here:\*\* (\w+) is ([\d.]+) times as fast", told):
        assert float(factor) >= 1
        assert slow not in named
        assert {slow, fast} - {choice.engine.precision, *(each.precision for each in choice.rivals)}
    rows = [re.split(r" *\| *", line)[1:-1] for line in table.splitlines() if re.match(r"\| \w+ +\| [\d.]+ ", line)]
    (fastest,) = [row for row in rows if row[3] == "-"]
    assert len(rows) == len(found.precisions) + 1
    for _, milliseconds, _, factor in rows:  # who takes fewer milliseconds is faster
        times = 1.0 if factor == "-" else float(factor.partition(" ")[0])
        assert float(milliseconds) / float(fastest[1]) == pytest.approx(times, abs=0.02, rel=0.02)
    if not choice.is_sure:
        alike, chosen = [choice.fastest, *choice.rivals], choice.engine
        loses = {each.precision: each.validation.main.drop for each in alike}
        assert loses[chosen.precision] == min(loses.values())
        assert "smallest of them" not in told or chosen.engine.bytes == min(each.engine.bytes for each in alike)
        assert ("is the best of them" in told) == ([*loses.values()].count(loses[chosen.precision]) == 1)
        assert "cannot be told apart" in told
        assert "fastest of" not in told
    for figures in re.findall(r"([\d.]+) to ([\d.]+)(?: within this run| times as fast as)", told):
        assert "{} to {}".format(*figures) in table


def test_onnx_runtime_is_not_called_pytorch(findings, evidence):
    entry = evidence("int8")
    latencies = tuple(
        one.model_copy(update={"contender": one.contender.replace("eager", "onnxruntime")})
        for one in entry.benchmark.latencies
    )
    ratios = tuple(one.model_copy(update={"baseline": "onnxruntime"}) for one in entry.benchmark.ratios)
    benchmark = entry.benchmark.model_copy(update={"latencies": latencies, "ratios": ratios})
    found = findings(replace(entry, benchmark=benchmark))
    assert "2.00 times as fast as ONNX Runtime at batch 8" in sentence(found)
    assert "ONNX Runtime, beside int8" in tables.latencies(found).index
