"""The fleet: its file, what targets answer, the choice, and the page."""

import io
import json
import re
import shutil
import tarfile
from argparse import ArgumentParser
from datetime import UTC, datetime
from types import SimpleNamespace

import pytest
from support.paths import ROOT

from enginewright.cli.commands import fleet as command
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.all import Params
from enginewright.engine.record import Refusal
from enginewright.engine.runtimes import describe_machine
from enginewright.model.user_code import users_code
from enginewright.report.evidence import Findings
from enginewright.targets import ask, here
from enginewright.targets.answer import PASSED, Answer, Answers, Measured, Speed, choose, described, frontier, offers_of
from enginewright.targets.file import Fleet
from enginewright.targets.page import all_rows, as_text, render_fleet

DESK, H200 = "desk: {price_per_hour: 0.1}", "h200: {ray: h200}"
TWO = f"cluster: 127.0.0.1:1\ntargets:\n  {DESK}\n  h200: {{ray: h200, price_per_hour: 3}}\n"


def fleet_of(tmp_path, text):
    (tmp_path / "fleet.yaml").write_text(text)
    return Fleet.read(tmp_path / "fleet.yaml")


@pytest.fixture
def fleet(tmp_path):
    return fleet_of(tmp_path, TWO)


def listing(*targets, head="cluster: a:1\n"):
    return head + "targets:\n" + "".join(f"  {target}\n" for target in targets)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("targets:\n  - {name: a, kind: here}\n", r"targets: write `NAME: \{\}`, `NAME: \{ray: RESOURCE\}` or `NAME: "),
        (listing("a: {slurm: b}"), "targets.0.slurm: extra inputs are not permitted, got 'b'"),
        (listing("a: {ssh: -oProxyCommand=x}"), "targets.0.ssh: string should match pattern"),
        (listing("a: {ssh: b, python: python3; x}"), "targets.0.python: string should match pattern"),
        (listing("a:", "a: {ray: b}"), 'found duplicate key "a"'),
        (listing(H200, head=""), "cluster is missing, HOST:PORT of the Ray cluster that h200 belongs to"),
        (listing("../a: {}"), "targets.0.name: string should match pattern"),
        (listing("a: {price_per_hour: 0}"), "price_per_hour: input should be greater than 0, got 0"),
        ("targets: {}\n", "targets is empty: list one at least"),
        ("targets: [\n", "is not valid YAML"),
        ("7\n", "the file: input should be a valid dictionary"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path, text, sentence):
    with pytest.raises(EnginewrightError, match=sentence) as raised:
        fleet_of(tmp_path, text)
    assert "\n" not in str(raised.value)


def test_the_example_is_valid_and_so_are_the_targets_in_its_comments(tmp_path):
    text = (ROOT / "fleet.yaml").read_text()
    assert [target.name for target in fleet_of(tmp_path, text).targets] == ["this-machine"]
    all_of_them = fleet_of(tmp_path, re.sub(r"(?m)^  # ", "  ", text.replace("cluster: null", "cluster: a:1")))
    assert [(one.ssh, one.ray) for one in all_of_them.targets] == [(None, None), ("user@board", None), (None, "h200")]


def test_a_target_that_is_not_listed_is_refused(fleet):
    with pytest.raises(EnginewrightError, match="has no target 'h20'; did you mean 'h200'"):
        fleet.only(("h20",))


# Choose what to take.


def answer(target, *speeds, precision="int8", verdict=PASSED):
    measured = tuple(
        Measured(
            precision=precision,
            verdict=verdict,
            metric="accuracy",
            speeds=(Speed(batch=batch, requests=1, p50=p50, p99=p99, images_per_second=1000 * batch / p50),),
        )
        for batch, p50, p99 in speeds
    )
    return Answer(target=target, model="net", node="n", date=datetime(2026, 11, 24, tzinfo=UTC), precisions=measured)


@pytest.mark.parametrize(
    ("latency", "budget", "taken"),
    [
        (None, 1.0, "int8 on h200, batch 1"),  # 0.42 a million: the quickest that can be paid
        (None, 0.2, "int8 on h200, batch 8"),  # 0.1 a million
        (None, 0.09, "int8 on desk, batch 8"),  # 0.07 a million
        (1.5, None, "int8 on h200, batch 8"),  # the cheapest in time
        (100, None, "int8 on desk, batch 8"),
        (1.5, 0.2, "int8 on h200, batch 8"),
        (0.1, None, "nothing answers within 0.1 ms; the quickest is int8 on h200"),
        (1.5, 0.05, "nothing costs 0.05 or less for a million images and answers within 1.5 ms; the cheapest is"),
    ],
)
def test_the_cheapest_in_time_or_the_quickest_for_a_budget(fleet, latency, budget, taken):
    answers = [
        answer("desk", (1, 8.0, 9.0), (8, 20.0, 22.0)),
        answer("h200", (1, 0.5, 0.6), (8, 1.0, 1.2)),
        answer("h200", (8, 0.1, 0.1), verdict="failed"),
    ]
    try:
        said = described(choose(offers_of(answers, fleet), latency, budget))
    except EnginewrightError as error:
        said = str(error)
    assert said.startswith(taken)


def test_without_prices_images_per_second_decide_and_no_cost_is_told(tmp_path):
    fleet = fleet_of(tmp_path, listing("desk:", head=""))
    best = frontier(offers_of([answer("desk", (1, 2.0, 2.0), (8, 4.0, 4.0), (16, 32.0, 32.0))], fleet))
    assert [offer.speed.batch for offer in best] == [1, 8]
    with pytest.raises(EnginewrightError, match="--budget needs prices: give targets a price_per_hour"):
        choose(best, None, 1.0)


def test_what_has_no_price_is_not_said_to_be_too_slow(tmp_path):
    fleet = fleet_of(tmp_path, listing(DESK, H200))
    offers = offers_of([answer("desk", (1, 8.0, 8.5)), answer("h200", (1, 0.5, 0.6))], fleet)
    with pytest.raises(EnginewrightError, match=r"nothing with a price answers within 2 ms; .* 8\.5 ms, "):
        choose(offers, 2.0, None)


def test_few_calls_are_compared_by_the_slowest_and_never_by_their_median(fleet):
    few = Speed(batch=1, requests=1, p50=1.0, p99=None, images_per_second=1000, slowest=7.0)
    old = few.model_copy(update={"slowest": None})  # of an earlier version

    def offered(*speeds):
        (one,) = answer("desk", (1, 1, 1)).precisions
        return offers_of(
            [answer("desk").model_copy(update={"precisions": (one.model_copy(update={"speeds": speeds}),)})], fleet
        )

    (offer,) = offered(few, old)
    assert "7 ms (the slowest of few calls)" in described(offer)
    with pytest.raises(EnginewrightError, match=r"nothing answers within 2 ms"):
        choose([offer], 2.0, None)


def test_limits_are_judged_for_each_model_and_json_stays_json(tmp_path, monkeypatch, capsys):
    models = {"slow": [answer("desk", (1, 8.0, 9.0))], "fast": [answer("desk", (1, 0.5, 0.6))]}
    monkeypatch.setattr(ask, "known_answers", lambda _: models)
    fleet_of(tmp_path, TWO)
    given = ["--file", str(tmp_path / "fleet.yaml"), "--page", str(tmp_path / "page.html"), "--known", "--json"]
    parser = ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([*given, "--latency", "2ms"])) == 1
    said = capsys.readouterr()
    assert list(json.loads(said.out)) == ["slow", "fast"]
    assert "slow: nothing" in said.err
    assert "fast: take int8 on desk" in said.err


def test_only_targets_that_were_asked_fail_the_command(tmp_path, monkeypatch):
    fleet_of(tmp_path, TWO)
    lost = Answer(target="h200", model="net", failed="it is lost")
    monkeypatch.setattr(ask, "known_answers", lambda _: {"net": [lost]})
    given = ["--file", str(tmp_path / "fleet.yaml"), "--page", str(tmp_path / "page.html")]
    parser = ArgumentParser()
    command.add_arguments(parser)
    assert command.run(parser.parse_args([*given, "--known"])) == 0
    for failed, code in ([], 0), (["h200"], command.FAILED):
        monkeypatch.setattr(ask, "ask_fleet", lambda *_, failed=failed: failed)
        assert command.run(parser.parse_args(given)) == code


# The page.


def test_a_failed_target_is_a_row_with_its_reason_and_what_is_not_told_is_never_zero(fleet):
    broken = Answer(target="h200", model="<net>", failed="no node has the resource 'h200'")
    answers = [answer("desk", (1, 8.0, 9.0)), broken]
    refused = Measured(precision="fp8", verdict="not built", why="no GPU of compute capability 8.9")
    answers[0] = answers[0].model_copy(update={"precisions": (*answers[0].precisions, refused)})
    rows = all_rows(fleet, answers)
    assert [*rows.loc["fp8 on desk"][:2]] == ["not built", "-"]
    assert "fp8 on desk, not built: no GPU of compute capability 8.9" in as_text("net", fleet, answers)
    assert [*rows.loc["h200"][:2]] == ["failed", "-"]
    assert rows.loc["int8 on desk", "cost of a million"] == "0.222"
    page = render_fleet(fleet, {"<net>": answers})
    assert "no node has the resource" in page
    assert "&lt;net&gt;" in page
    assert "<net>" not in page
    assert "h200 failed: no node has the resource 'h200'." in as_text("net", fleet, answers)


def test_an_answer_stays_where_its_target_fails_later(tmp_path):
    params = Params.read(ROOT / "params.yaml")
    kept = Answers.about(params, {}, tmp_path)
    kept.keep(answer("desk", (1, 8.0, 9.0)))
    kept.keep(Answer(target="desk", model="resnet18", failed="it is lost"))
    found = kept.of("desk")
    assert found
    assert (found.failed, len(found.precisions)) == ("it is lost", 1)
    assert [each.folder for each in Answers.of_all_models(tmp_path)] == [kept.folder]
    assert Answers.about(params.model_copy(update={"runtime": "onnxruntime"}), {}, tmp_path).folder == kept.folder
    other = params.model_copy(update={"model": params.model.model_copy(update={"source": "swin_t"})})
    assert Answers.about(other, {}, tmp_path).folder.name.startswith("swin-t-")


def test_changed_content_under_the_same_names_is_another_subject(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    params = Params.read()
    factory = params.model_copy(update={"model": params.model.model_copy(update={"source": "my_net:make"})})
    given = params.model_copy(update={"weights": params.weights.model_copy(update={"source": "data/weights/net.pt"})})
    (tmp_path / "data/weights").mkdir(parents=True)
    lock = "stages: {{samples: {{outs: [{{path: artifacts/samples/validation, md5: {}}}]}}}}\n"
    found = set()
    for file, texts, subject in (
        ("dvc.lock", (lock.format("a"), lock.format("b")), params),
        ("my_net.py", ("make = 1", "make = 2"), factory),
        ("data/weights/net.pt", ("1", "2"), given),
    ):
        for text in texts:
            (tmp_path / file).write_text(text)
            found |= {Answers.about(subject, users_code(subject)).folder.name for _ in range(2)}
    assert len(found) == 6


def test_the_least_batch_is_found_in_any_order(fleet):
    (one,) = answer("desk", (8, 9.0, 9.0)).precisions
    first = Speed(batch=1, requests=1, p50=2.0, p99=None, images_per_second=500)
    found = answer("desk").model_copy(update={"precisions": (one.model_copy(update={"speeds": (*one.speeds, first)}),)})
    assert "2 (batch 1)" in as_text("net", fleet, [found])


@pytest.mark.parametrize("content", ["<<<<<<< HEAD", '{"target": "../../desk", "model": "net"}'])
def test_a_damaged_answer_says_how_to_mend_it(tmp_path, content):
    (tmp_path / "desk.json").write_text(content)
    with pytest.raises(
        EnginewrightError, match=r"desk\.json is damaged .*: restore it from git, or delete it and ask desk"
    ):
        Answers(tmp_path).of("desk")


# Asking.


@pytest.fixture
def asked(fleet, monkeypatch, tmp_path):
    """Ask a fleet whose DVC and git answer as they are told."""

    def asked(dvc, commit="abc"):
        monkeypatch.chdir(ROOT)
        for module in (here, ask):
            monkeypatch.setattr(module, "dvc", dvc)
        monkeypatch.setattr(ask, "revision", lambda: commit)
        monkeypatch.setattr(ask.Answers, "about", lambda *_: Answers(tmp_path / "history"))
        ask.ask_fleet(fleet, Params.read(), {})
        return {name: Answers(tmp_path / "history").of(name) for name in ("desk", "h200")}

    return asked


def refusing(step, sentence):
    def dvc(*arguments):
        if arguments[0] == step:
            raise EnginewrightError(sentence)

    return dvc


@pytest.mark.parametrize(
    ("dvc", "commit", "reasons"),
    [
        (refusing("repro", "build: no"), "abc", ("build: no", "build: no")),
        (lambda *_: None, "abc-dirty", (None, "it gets the last commit, and files differ from it")),
        (lambda *_: None, "abc", (None, "the cluster in fleet.yaml: nobody answers at 127.0.0.1:1")),
    ],
)
def test_a_target_that_cannot_be_asked_fails_and_the_others_are_asked(asked, dvc, commit, reasons, monkeypatch):
    monkeypatch.setattr(here, "Verdict", None) if reasons[0] else monkeypatch.setattr(
        ask, "answer_here", lambda name, *_: answer(name, (1, 8.0, 9.0))
    )
    for found, reason in zip(asked(dvc, commit).values(), reasons, strict=True):
        assert found.failed.startswith(reason or "") if reason else not found.failed


def test_a_target_that_fails_before_the_samples_are_made_stands_beside_those_that_answer(fleet, monkeypatch, tmp_path):
    made = []
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ask, "revision", lambda: "abc")
    monkeypatch.setattr(ask.Answers, "about", lambda *_: Answers(tmp_path / ("made" if made else "before")))
    monkeypatch.setattr(ask, "answer_here", lambda name, *_: made.append(name) or answer(name, (1, 8.0, 9.0)))
    monkeypatch.setattr(ask, "_packed", lambda *_: None)
    assert ask.ask_fleet(fleet, Params.read(), {}) == ["h200"]
    assert sorted(file.name for file in (tmp_path / "made").iterdir()) == ["desk.json", "h200.json"]
    assert not (tmp_path / "before").exists()


def test_what_is_known_is_written_when_the_command_is_killed(fleet, monkeypatch, tmp_path):
    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ask, "revision", lambda: "abc-dirty")
    monkeypatch.setattr(ask.Answers, "about", lambda *_: Answers(tmp_path))
    monkeypatch.setattr(ask, "answer_here", killed)
    with pytest.raises(KeyboardInterrupt):
        ask.ask_fleet(fleet, Params.read(), {})
    assert "files differ from it: commit first" in Answers(tmp_path).of("h200").failed


def test_a_precision_that_a_target_cannot_run_is_a_row_and_the_target_did_not_fail(fleet, monkeypatch, tmp_path):
    """The stages of DVC have run, and left reports in which one precision has no engine."""
    why = "compute capability 7.5 does not have bf16; TensorRT cannot build it"
    found = Findings(describe_machine("openvino"), [], None, {"bf16": Refusal(precision="bf16", why=why)})
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(ask, "revision", lambda: "abc")
    monkeypatch.setattr(ask.Answers, "about", lambda *_: Answers(tmp_path))
    for name, value in {"dvc": lambda *_: None, "gather_findings": lambda *_: found}.items():
        monkeypatch.setattr(here, name, value)
    monkeypatch.setattr(here.Verdict, "read", lambda _: SimpleNamespace(failures={}))
    assert ask.ask_fleet(fleet.only(("desk",)), Params.read(), {}) == []
    text = as_text("net", fleet, [Answers(tmp_path).of("desk")])
    assert re.search("bf16 on desk +not built", text)
    assert text.endswith(f"bf16 on desk, not built: {why}")


def test_files_that_no_commit_has_are_not_left_behind(monkeypatch):
    monkeypatch.setattr(ask, "_git", lambda *_: b"data/images/cat.jpg\n")
    with pytest.raises(EnginewrightError, match=r"data/images/cat\.jpg is not in it: `git add` or `dvc add` it"):
        ask._packed("abc", Params())


def test_what_serves_any_machine_is_made_here_and_no_mix(monkeypatch):
    params = Params.model_validate({"mix": {"best": {}}, "precisions": {"fp32": {}, "int8": {}, "best": {}}})
    ran = []

    def dvc(*arguments):
        ran.extend(arguments)
        raise EnginewrightError("enough")

    monkeypatch.setattr(ask, "_git", lambda *_: b"")
    monkeypatch.setattr(ask, "dvc", dvc)
    with pytest.raises(EnginewrightError, match="enough"):
        ask._packed("abc", params)
    assert ran == ["repro", "reference", "convert@fp32", "convert@int8"]


def test_a_copy_of_a_project_in_a_folder_has_its_commit_and_what_is_newer(tmp_path):
    commit = io.BytesIO()
    with tarfile.open(fileobj=commit, mode="w") as archive:
        for name in ("models/net/dvc.yaml", ".dvc/config"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    root, newer = tmp_path / "fleet/net", {"dvc.lock": b"newer", "../../.dvc/config.local": b"[cache]"}
    for _ in range(2):
        project = ask.Copy("net", "abc", commit.getvalue(), "models/net/", newer).lay_out(root)
        assert (project, (project / "dvc.lock").read_bytes()) == (root / "models/net", b"newer")
        assert (root / ".dvc/config.local").read_bytes() == b"[cache]"
        (root / "left").touch()
    assert (root / ".git").is_dir()


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["build: it is full", "ERROR: failed to reproduce 'build@int8': exited with 1"], "build: it is full"),
        (["ERROR: unexpected error - Unable to locate credentials", "", "Having any troubles? Hit us up at x"],
         "unexpected error - Unable to locate credentials"),
        (["it is killed"], "it is killed"),
        ([], "it gives no reason"),
    ],
)  # fmt: skip
def test_dvcs_reason_is_the_line_that_says_what_is_wrong(said, reason):
    assert here._reason(said) == reason
