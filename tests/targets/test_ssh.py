"""A target that a real sshd on this machine stands for, with the connection cut in each step."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import pytest
from support.int8_project import TO_VALIDATE, int8_project
from support.params import written
from support.paths import ROOT
from support.sshd import Server, require_sshd
from support.warm_python import warm_python
from support.wrong_compiler import be_wrong, wrong_python

from enginewright.cli.commands import doctor
from enginewright.core.errors import EnginewrightError
from enginewright.core.process import TARGET
from enginewright.engine.runtimes import describe_machine
from enginewright.measure.records import Trace
from enginewright.precision.cure import Cure
from enginewright.targets import ssh
from enginewright.targets.file import Target
from enginewright.targets.ssh import describe, made_ready, reached, run_there


@pytest.fixture
def board(tmp_path, monkeypatch):
    require_sshd()
    server = Server(tmp_path / "server")
    monkeypatch.setenv("PATH", f"{server.folder}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(ssh, "SECONDS_BETWEEN_TRIES", 0.2)
    yield server
    server.stop()


def target(python=None):
    return Target(name="jetson", ssh="board", python=str(python or warm_python() / "python3"))


@pytest.fixture
def device(board):
    with reached(target()) as (device, looked):
        yield made_ready(device, looked, "project")


def script(board, text):
    path = board.home / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def refused(board, python=None):
    with pytest.raises(EnginewrightError) as raised, reached(target(python)) as (device, looked):
        describe(made_ready(device, looked, "project"), "auto")
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_a_target_says_what_it_is_and_what_is_there_is_not_sent_again(board, device):
    machine, of_onnxruntime = describe(device, "openvino")
    assert (machine, of_onnxruntime) == (describe_machine("openvino"), "cpu")
    sent = board.home / ".cache/enginewright/target/project/code/enginewright/core/files.py"
    assert sent.read_bytes() == (ROOT / "enginewright/core/files.py").read_bytes()
    before = sent.stat().st_ino
    os.utime(sent)  # what counts is what is in it
    device.send(ROOT, ("enginewright", "stages"), f"{device.project}/code")
    assert sent.stat().st_ino == before
    sent.write_text("changed there")
    device.send(ROOT, ("enginewright", "stages"), f"{device.project}/code")
    assert sent.read_bytes() == (ROOT / "enginewright/core/files.py").read_bytes()


def test_no_connection_is_left(board, device):
    control = Path(device.control)
    assert control.exists()
    device.close()
    assert not control.exists()


# What goes wrong.


def test_a_key_that_is_not_known_is_not_taken(board):
    (board.folder / "known").write_text("")
    said = refused(board)
    assert said == "board is not reached: Host key verification failed.: look at its key once, by `ssh board`"


def test_a_key_of_ours_that_is_not_accepted_is_told(board):
    (board.folder / "authorized").write_text("")
    assert re.search("board is not reached: .*Permission denied", refused(board))


def test_a_target_that_is_gone_is_told(board):
    board.stop()
    assert re.search("board is not reached: .*Connection refused", refused(board))


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/nowhere/python", r"board cannot run it: .*/nowhere/python: .*: name another Python as `python`"),
        ("python3 - | sed 's/3\\.[0-9]*/3.8/g'", "board has x86_64, Python 3.8.*: name 3.10 or later as `python`"),
        ("python3 - | sed 's/linux/darwin/; s/Linux/Darwin/'", "board has Darwin: Linux is needed"),
        ("PATH=/nowhere exec {python} -", "board has no rsync: apt-get install rsync"),
        (
            'if [ "$1" = - ]; then exec {python} -; fi; echo "runtime: auto finds no OpenVINO here" >&2; exit 1',
            "board: runtime: auto finds no OpenVINO here",
        ),
    ],
)
def test_a_target_that_cannot_do_it_is_a_sentence(board, python, sentence):
    python = python if python.startswith("/") else script(board, python.format(python=sys.executable))
    assert re.fullmatch(sentence, refused(board, python))


def test_packages_that_there_are_none_of_for_another_architecture_are_told(board):
    python = script(board, f'{sys.executable} - | sed \'s/x86_64/riscv64/; s/"installed": .*/"installed": {{}}}}/\'')
    assert re.match("no packages for riscv64, Python 3.1", refused(board, python))


def test_a_full_disk_is_told(board, device, tmp_path):
    small = board.home / ".cache/enginewright/target/small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    try:
        (tmp_path / "large").write_bytes(os.urandom(3_000_000))
        with pytest.raises(EnginewrightError, match="board is full: free space there"):
            device.send(tmp_path, ["large"], "target/small")
    finally:
        subprocess.run(["umount", small], check=True)


# The connection breaks.


def test_sending_goes_on_where_it_was_cut_off(board, device, tmp_path, capfd):
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples/0.npy").write_bytes(os.urandom(6_000_000))
    (board.folder / "sending").touch()
    device.again(lambda: device.send(tmp_path, ["samples"], device.project))
    assert "connecting again" in capfd.readouterr().err
    there = board.home / ".cache/enginewright" / device.project / "samples/0.npy"
    assert there.read_bytes() == (tmp_path / "samples/0.npy").read_bytes()


def test_bringing_goes_on_where_it_was_cut_off(board, device, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = board.home / ".cache/enginewright" / device.project / "work/engines/int8.plan"
    made.parent.mkdir()
    made.write_bytes(os.urandom(6_000_000))
    (board.folder / "bringing").touch()
    device.again(lambda: device.bring(["engines", "not/made"]))
    assert "connecting again" in capfd.readouterr().err
    assert (tmp_path / "engines/int8.plan").read_bytes() == made.read_bytes()


@pytest.fixture
def stage(device, built, samples, machine, tmp_path, monkeypatch):
    """The stage trace, of an engine here and there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "params.yaml").write_text("inference: {threads: 1}\n")
    machine.write(tmp_path / "machine.json")
    monkeypatch.setenv(TARGET, device.model_dump_json())
    for name, folder in {"engine": built, "validation": samples.folder}.items():
        subprocess.run(["cp", "-r", folder, tmp_path / name], check=True)
    paths = {name: name for name in ("engine", "validation")} | {
        "machine": "machine.json",
        "report": "reports/int8.json",
    }
    return [word for name, path in paths.items() for word in (f"--{name}", path)]


def test_a_stage_runs_there_and_what_it_makes_comes_back(stage, board, device, capfd):
    assert run_there("trace", ["--precision", "fp32", *stage]) == 0
    assert "fp32: " in capfd.readouterr().out
    assert Trace.read(Path("reports/int8.json")).layers
    work = board.home / ".cache/enginewright" / device.project / "work"
    assert (work / "reports/int8.json").exists()


def test_a_stage_that_fails_there_says_why(stage, capfd):
    Path("engine/engine.json").unlink()
    assert run_there("trace", ["--precision", "fp32", *stage]) == 1
    assert re.search("^trace: engine is not an engine's folder", capfd.readouterr().err, re.MULTILINE)


def test_a_stage_whose_connection_breaks_ends_there_and_begins_again(stage, board, device, monkeypatch, capfd):
    marks = board.home / "marks"
    begun = board.home / "begun"
    slow = "import time; from enginewright.core.process import *; end_with_parent(); "
    slow += f"open('{begun}', 'w').close(); time.sleep(600)"
    held = script(
        board,
        f"echo $$ >> {marks}\n"
        f'if [ $(wc -l < {marks}) = 1 ]; then exec {sys.executable} -c "{slow}"; fi\n'
        f'exec {warm_python()}/python3 "$@"',
    )
    monkeypatch.setenv(TARGET, device.model_copy(update={"python": str(held)}).model_dump_json())

    def pull_the_cable():
        while not begun.exists():
            time.sleep(0.05)
        board.stop()
        time.sleep(1)
        board.start()

    cable = threading.Thread(target=pull_the_cable)
    cable.start()
    assert run_there("trace", ["--precision", "fp32", *stage]) == 0
    cable.join()
    first, *others = map(int, marks.read_text().split())
    assert others
    assert not Path(f"/proc/{first}").exists(), "it still runs there"
    assert Trace.read(Path("reports/int8.json")).layers
    assert "connecting again" in capfd.readouterr().err


def test_a_target_that_does_not_come_back_is_told(device, board, monkeypatch):
    monkeypatch.setattr(ssh, "TRIES", 2)
    board.stop()
    with pytest.raises(EnginewrightError, match=r"board is gone: .*; ask again to go on where it was"):
        device.again(lambda: device.run("true"))
    board.start()


# A target finds cures and tunings, which come back.


@pytest.fixture
def wrong_there(board):
    """Return a target whose ONNX Runtime is wrong about a convolution in int8."""
    with reached(target(wrong_python(warm_python() / "python3", board.home, "conv2"))) as (device, looked):
        yield made_ready(device, looked, "project")


def test_an_engine_that_is_wrong_there_is_cured_there(
    wrong_there, tmp_path, tiny_onnx, build, samples, monkeypatch, capfd
):
    be_wrong(monkeypatch, ["conv2"], "scaled")
    root, found = int8_project(tmp_path, tiny_onnx, build, samples), Path("cures/int8.json")
    monkeypatch.chdir(root)
    monkeypatch.setenv(TARGET, wrong_there.model_dump_json())
    words = ["--precision", "int8", *(word for name, path in TO_VALIDATE.items() for word in (f"--{name}", path))]
    written(root, {"search.int8.cure": True})
    assert run_there("validate", words) == 0
    assert Cure.read(found).change.nodes == ("conv2",)
    assert "with conv2 in floating point (Conv)" in capfd.readouterr().out

    found.unlink()  # what is deleted here does not come back
    written(root, {"search.int8.cure": False})
    assert run_there("validate", words) == 0
    assert not found.exists()


# What a target lacks.


def test_what_a_target_has_is_not_brought(board):
    with reached(target()) as (_, looked):
        assert looked.lacking() == []
        without = {
            name: version for name, version in looked.installed.items() if name not in ("scipy", "onnxruntime-gpu")
        }
        bare = looked.model_copy(update={"installed": without | {"onnxruntime": "1.24.0", "numpy": "1.21.5"}})
        assert [line.partition("<")[0].partition(">")[0] for line in bare.lacking()] == ["numpy", "scipy"]


def test_doctor_says_whether_a_target_can_be_asked(board, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text("runtime: openvino\n")
    Path("fleet.yaml").write_text(f"targets:\n  desk:\n  jetson: {{ssh: board, python: {warm_python()}/python3}}\n")
    parser = ArgumentParser()
    doctor.add_arguments(parser)
    assert doctor.run(parser.parse_args(["--target", "jetson"])) == 0
    said = capsys.readouterr().out
    assert said.endswith("jetson can be asked.\n")
    assert re.search(r"runtime +openvino 20", said)
    board.stop()
    assert doctor.run(parser.parse_args(["--target", "jetson", "--json"])) == 1
    assert "not reached" in json.loads(capsys.readouterr().out)["findings"][-1]["found"]
    board.start()


def test_numbers_of_the_pace_without_pytorch_agree():
    from enginewright.measure.timing import pace_of_numpy

    readings = sorted(pace_of_numpy() for _ in range(11))
    assert 1e-7 < readings[0] < 1e-3
    assert np.isfinite(readings).all()
