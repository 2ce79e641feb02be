"""Which layers are spared, on made-up losses: their squares add up, as those of a real network nearly do."""

import math
from types import SimpleNamespace

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import Thresholds
from enginewright.precision import search as journal_module
from enginewright.precision.in_dialect import Ingredients, spare_searched
from enginewright.precision.records import AIM, Search, SearchedLayer, Step, digest_of
from enginewright.precision.search import Journal, find_spared, in_order_of_worth

LOSSES = {"a": 0.02, "b": 0.2, "c": 0.03, "d": 0.1, "e": 0.01}
WORK = {"a": 0.1, "b": 0.1, "c": 0.5, "d": 0.1, "e": 0.2}


class MadeUp:
    """A trial whose thresholds allow a relative error of `allowed`."""

    def __init__(self, allowed=0.15, dies_at=None, losses=LOSSES, told=LOSSES, others=1.0):
        """`told` is what layers seem to lose alone. Others lose `others` times as much."""
        self.others = others
        self.losses, self.told = losses, told
        limits = Thresholds(cosine=0.9, relative_error=allowed, agreement=0.9, metric_drop=0.1)
        self.checks = SimpleNamespace(limits=limits)
        self.asked, self.dies_at = [], dies_at

    def losses_alone(self, layers):
        for layer in layers:
            if layer == self.dies_at:
                raise KeyboardInterrupt
            self.asked.append(layer)
            yield layer, self.told[layer]

    def check(self, spared, work):
        self.asked.append(tuple(spared))
        error = self.error(spared)
        return Step(
            spared=len(spared),
            work=work,
            cosine=1,
            relative_error=error,
            agreement=None,
            metric_drop=None,
            looked_at=16,
            spent=error / self.checks.limits.relative_error,
        )

    def judge(self, spared):
        return self.others * self.error(spared) / self.checks.limits.relative_error

    def error(self, spared):
        return math.hypot(*(loss for name, loss in self.losses.items() if name not in spared))


@pytest.fixture
def journal(tmp_path):
    return Journal(tmp_path / "journal.jsonl")


@pytest.mark.parametrize(("told", "tries"), [(None, 5), (0.0, 14), (0.1, 14)], ids=["true", "none", "equal"])
def test_measured_losses_make_the_tries_few(journal, told, tries):
    """37 of 100 layers must be spared. Where losses tell nothing, halves still find them."""
    losses = {f"{index:03}": 0.97**index for index in range(100)}
    seems = losses if told is None else dict.fromkeys(losses, told)
    allowed = math.hypot(*list(losses.values())[37:]) / AIM * 1.0001
    answer = find_spared(MadeUp(allowed, losses=losses, told=seems), dict.fromkeys(losses, 0.01), journal, seconds=60)
    assert len(answer.spared) == 37
    assert len(answer.path) <= tries


@pytest.mark.parametrize(
    ("allowed", "spared"),
    [(1.0, ()), (0.15, ("b",)), (0.06, ("b", "d")), (0.03, ("b", "d", "a", "c")), (0.001, ("b", "d", "a", "c", "e"))],
)
def test_the_fewest_layers_are_spared_that_keep_the_thresholds(journal, allowed, spared):
    answer = find_spared(MadeUp(allowed), WORK, journal, seconds=60)
    assert answer.spared == spared
    assert answer.path[0].spared == 0
    chosen = next(step for step in answer.path if step.spared == len(spared))
    assert chosen.spent <= AIM
    assert all(step.spent > AIM for step in answer.path if step.spared < len(spared))


@pytest.mark.parametrize(("others", "spared"), [(1.3, "b"), (3, "bd"), (8, "bdac"), (100, "bdace")])
def test_more_is_spared_until_other_samples_keep_the_thresholds(journal, others, spared):
    answer = find_spared(MadeUp(others=others), WORK, journal, seconds=60)
    assert "".join(answer.spared) == spared
    assert next(step for step in answer.path if step.spared == len(spared)).at_most <= 1


def test_hardly_more_is_spared_than_other_samples_need(journal):
    """60 of 100 layers must be spared for them, and 37 for those that are seen."""
    losses = {f"{index:03}": 0.97**index for index in range(100)}
    seen, others = (math.hypot(*list(losses.values())[count:]) for count in (37, 60))
    trial = MadeUp(seen / AIM * 1.0001, losses=losses, told=losses, others=seen / AIM / others)
    answer = find_spared(trial, dict.fromkeys(losses, 0.01), journal, seconds=60)
    assert 60 <= len(answer.spared) <= 60 + 100 // 16


def test_int8_as_it_is_may_be_too_little_for_other_samples_alone(journal):
    answer = find_spared(MadeUp(allowed=0.4, others=2), WORK, journal, seconds=60)
    assert answer.path[0].spent <= AIM < 1 < answer.path[0].at_most
    assert answer.spared == ("b",)


def test_a_model_that_needs_nothing_is_measured_no_further(journal):
    trial = MadeUp(allowed=1.0)
    assert find_spared(trial, WORK, journal, seconds=60).losses == {}
    assert trial.asked == [()]


def test_layers_are_worth_more_the_more_they_lose_for_their_work():
    assert in_order_of_worth({"small": 0.1, "large": 0.12}, {"small": 0.1, "large": 0.9}) == ["small", "large"]
    assert in_order_of_worth({"small": 0.1, "large": 0.9}, {"small": 0.1, "large": 0.9}) == ["large", "small"]


def test_a_search_that_was_killed_goes_on_and_finds_the_same(tmp_path):
    path, whole = tmp_path / "journal.jsonl", MadeUp()
    wanted = find_spared(whole, WORK, Journal(tmp_path / "another.jsonl"), seconds=60)
    with pytest.raises(KeyboardInterrupt):
        find_spared(MadeUp(dies_at="d"), WORK, Journal(path), seconds=60)
    path.write_text(path.read_text() + '["half a li')
    rest = MadeUp()
    assert find_spared(rest, WORK, Journal(path), seconds=60) == wanted
    assert rest.asked[:2] == ["d", "e"]
    assert len(rest.asked) < len(whole.asked)
    assert find_spared(MadeUp(dies_at="a"), WORK, Journal(path), seconds=60) == wanted


def test_other_ranges_have_another_journal(monkeypatch, tmp_path):
    monkeypatch.setattr(journal_module, "user_cache_path", lambda _: tmp_path)
    Journal.about("ranges", 1).answer("question", lambda: 1)
    assert Journal.about("ranges", 1).answer("question", lambda: 2) == 1
    assert Journal.about("ranges", 2).answer("question", lambda: 2) == 2


def test_what_there_is_no_time_for_is_not_measured(journal, monkeypatch):
    with pytest.raises(EnginewrightError, match="1e-09 seconds do not suffice to measure one layer"):
        find_spared(MadeUp(), WORK, journal, seconds=1e-9)
    seconds = iter((0, 1, 2, 3, 4, 5))
    monkeypatch.setattr("enginewright.precision.search.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    answer = find_spared(MadeUp(), WORK, journal, seconds=3)
    assert answer.losses.keys() == {"a", "b"}
    assert answer.spared == ("b",)


@pytest.mark.parametrize(
    ("names", "path", "spared", "said"),
    [
        ("abcde", [(0, 0.4)], "", "all 5 layers may be in int8, which takes 40% of what the thresholds allow"),
        ("a", [(0, 0.4)], "", "the only layer may be in int8, which takes 40% of what the thresholds allow"),
        ("", [(0, 0)], "", "no layer can be in int8"),
        ("a", [(0, 1.4), (1, 0)], "a", "1 of 1 layer stays in floating point, 20% of the work, which takes 0% "),
        (
            "abcde",
            [(0, 1.4), (5, 0.1), (2, 0.7)],
            "ab",
            "2 of 5 layers stay in floating point, 40% of the work, which takes 70% ",
        ),
        (
            "abcde",
            [(0, 4.0), (1, 0.7), (5, 0.2)],
            "abcde",
            "would take 400%; 1 must for the 32 samples seen: raise samples.calibration, and fewer may stay",
        ),
        (
            "abcde",
            [(0, 1.4), (5, 1.2)],
            "",
            "the closest leaves 5 layers in floating point, 100% of the work, which takes 120% of what the thresholds "
            "allow",
        ),
    ],
)
def test_the_answer_is_a_sentence(names, path, spared, said):
    steps = tuple(
        Step(
            spared=count,
            work=count / 5,
            cosine=1,
            relative_error=used,
            agreement=None,
            metric_drop=None,
            looked_at=16,
            spent=used,
        )
        for count, used in path
    )
    layers = tuple(SearchedLayer(name=name, op_type="Conv", work=0.2, loss=0.1) for name in names)
    found = Search(
        precision="int8",
        calibration="",
        model=None,
        rescue="",
        layers=layers,
        samples=(8, 16, 32),
        path=steps,
        spared=tuple(spared),
    )
    assert said in found.in_words()
    of_many = found.model_copy(update={"samples": (8, 16, 256)})  # no search looks at more
    assert "raise samples.calibration" not in of_many.in_words()


def test_what_was_searched_for_something_else_is_refused(tmp_path):
    for name in ("rescued", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rescue.json").write_text(name)
    rescued, file = tmp_path / "rescued", tmp_path / "int8.json"
    about = {"precision": "int8", "calibration": "ranges", "model": "model", "rescue": digest_of(rescued)}
    Search(**about, layers=(), samples=(8, 16, 32), path=(), spared=("conv",)).write(file)

    def spared(calibration="ranges", model="model", rescued=rescued):
        given = Ingredients(None, SimpleNamespace(origin=(calibration, model)), None, None, None, spared=("end",))
        return spare_searched(given, file, rescued).spared

    assert spared() == ("end", "conv")
    for other in ({"calibration": "other"}, {"model": "other"}, {"rescued": tmp_path / "other"}):
        with pytest.raises(
            EnginewrightError, match=r"int8\.json was searched with another calibration, model or rescue: r"
        ):
            spared(**other)
    file.write_text('{"precision": "int8", "threshold": 1}')
    with pytest.raises(EnginewrightError, match=r"int8\.json is damaged or of another version of Enginewright"):
        spared()
