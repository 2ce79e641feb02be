"""A stage ends with one line and exit code 1 for what a user can cause."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from google.protobuf.message import EncodeError
from support.paths import ROOT

from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import PrecisionName
from enginewright.core.params.all import Params
from enginewright.pipeline import run_stage


@pytest.fixture
def arguments(monkeypatch):
    return lambda *values: monkeypatch.setattr("sys.argv", ["stage", *values])


def test_arguments_reach_the_stage_with_their_types(arguments):
    seen = {}

    def convert(precision: str, made_from: Path) -> None:
        """Convert."""
        seen.update(precision=precision, made_from=made_from)

    arguments("--made-from", "artifacts/simplified", "--precision", "int8")
    run_stage(convert)
    assert seen == {"precision": "int8", "made_from": Path("artifacts/simplified")}


class ManyPaths(NamedTuple):
    made_from: Path
    converted: Path


def test_paths_reach_the_stage_together(arguments):
    seen = []

    def convert(precision: str, paths: ManyPaths) -> None:
        """Convert."""
        seen.extend((precision, paths))

    arguments("--converted", "here", "--precision", "int8", "--made-from", "there")
    run_stage(convert)
    assert seen == ["int8", ManyPaths(Path("there"), Path("here"))]


def test_a_stage_that_takes_the_parameters_gets_them(arguments, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    seen = {}

    def convert(params: Params, precision: PrecisionName) -> None:
        seen.update({precision: params})

    arguments("--precision", "int8")
    run_stage(convert)
    assert seen == {"int8": Params.read()}
    arguments("--precision", "int7")
    with pytest.raises(SystemExit, match=r"^convert: params.yaml has no section precisions.int7; it has fp32, fp16, "):
        run_stage(convert)


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (EnginewrightError("this is wrong: do that"), "stage: this is wrong: do that"),
        (FileNotFoundError(2, "No such file or directory", "data/x"), "stage: data/x: No such file or directory"),
        (OSError(28, "No space left on device"), "stage: the operating system: No space left on device"),
        (OSError(28, "No space left on device", "source", None, "copy"), "stage: copy: No space left on device"),
        (OSError(5, "Input/output error", "source", None, "copy"), "stage: source: Input/output error"),
        (MemoryError(), "stage: there is not enough memory"),
        (
            EncodeError("Failed to serialize proto"),
            "stage: there is not enough memory: Protobuf cannot write a graph, of which it takes 2 GB at most",
        ),
        (MemoryError("Unable to allocate 1 TiB"), "stage: there is not enough memory: Unable to allocate 1 TiB"),
        (EnginewrightError("\x1b[2J\u202e"), r"stage: \x1b[2J\u202e"),
        (EnginewrightError("a" * 1000 + "b" * 1000), f"stage: {'a' * 600} … {'b' * 600}"),
        (KeyboardInterrupt(), "stage: interrupted; nothing half-written was kept. Run `dvc repro` again to go on."),
    ],
)
def test_an_error_that_a_user_can_cause_is_one_line(arguments, error, line):
    def stage() -> None:
        """Fail."""
        raise error

    arguments()
    with pytest.raises(SystemExit) as caught:
        run_stage(stage)
    assert caught.value.code == line  # Python prints it to stderr, and exits with 1


def test_a_mistake_of_ours_keeps_its_traceback(arguments):
    def stage() -> None:
        """Fail."""
        raise ZeroDivisionError

    arguments()
    with pytest.raises(ZeroDivisionError):
        run_stage(stage)


def test_a_missing_argument_is_named(arguments, capsys):
    def stage(data: Path) -> None:
        """Need something."""

    arguments()
    with pytest.raises(SystemExit):
        run_stage(stage)
    assert "required: --data" in capsys.readouterr().err


SAMPLES = ["--data", "data", "--texts", "texts", "--task", "task.json"]
SAMPLES += ["--training", "t", "--calibration", "c", "--validation", "v"]


def run_module(folder, *arguments):
    command = [sys.executable, "-m", "stages", *arguments]
    child = subprocess.run(command, cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (child.returncode, child.stdout, child.stderr.count("\n")) == (1, "", 1)
    return child.stderr


@pytest.mark.parametrize("named", [[], ["calibrat"], ["../gate"]])
def test_what_is_no_stage_is_told_which_there_are(tmp_path, named):
    assert f"'{''.join(named)}' is no stage; there are benchmark, build," in run_module(tmp_path, *named)


def test_a_stage_on_bad_parameters_prints_one_line_and_exits_with_1(tmp_path):
    for content, said in (
        ("samples: [\n", "params.yaml is not valid YAML: line 2: "),
        ("5\n", "params.yaml: the file: input should be a section"),
    ):
        (tmp_path / "params.yaml").write_text(content)
        assert run_module(tmp_path, "samples", *SAMPLES).startswith(f"samples: {said}")
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_a_stage_that_takes_too_long_is_ended_with_one_line(tmp_path):
    (tmp_path / "params.yaml").write_text("timeouts: {samples: 0.000001}\n")
    assert run_module(tmp_path, "samples", *SAMPLES).startswith(
        "samples: it took longer than `timeouts` in params.yaml"
    )
