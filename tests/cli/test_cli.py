"""The command as a whole: help, completion, colours, exit codes and typing mistakes."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command import ROOT, enginewright, on_a_terminal

from enginewright import __version__
from enginewright.core.installing import how_to_install
from enginewright.engine.record import EngineRecord

COMMANDS = (
    "new",
    "doctor",
    "inspect",
    "infer",
    "compare",
    "bundle",
    "cure",
    "fleet",
    "keep",
    "reduce",
    "refit",
    "upgrade",
)
COLOUR = "\033["


def test_without_arguments_it_prints_the_help():
    done = enginewright()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == enginewright("--help").stdout
    listed = re.findall(r"(?m)^    (\w+) ", done.stdout)
    assert tuple(listed) == COMMANDS, "the usual order"


@pytest.mark.parametrize(
    ("missing", "given", "extra"),
    [("PIL", ("infer", "engine", "cat.jpg"), "images"), ("numpy", ("bundle", "int8"), "pipeline")],
)
def test_what_is_not_installed_is_named_with_what_brings_it(tmp_path, missing, given, extra):
    (tmp_path / f"{missing}.py").write_text("raise ModuleNotFoundError(name=__name__)")
    done = enginewright(*given, cwd=tmp_path, PYTHONPATH=f"{tmp_path}:{ROOT}")
    said = f"enginewright: {given[0]} needs the package {missing}: {how_to_install(extra)}\n"
    assert (done.returncode, done.stderr) == (1, said)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_shows_examples_and_exit_codes(command):
    done = enginewright(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    examples = done.stdout.split("examples:\n")[1]
    assert f"  enginewright {command}" in examples
    assert re.search(r"[Ee]xits \d", examples)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_in_the_help_can_be_parsed(command):
    from enginewright.cli.main import ELSEWHERE, build_parser

    parser = build_parser()
    examples = enginewright(command, "--help").stdout.split("examples:\n")[1]
    lines = re.findall(r"(?m)^  enginewright (.*?)(?: \| .*|   .*)?$", examples)
    assert lines
    module = ELSEWHERE.get(command, f"enginewright.cli.commands.{command}")
    for line in lines:
        assert parser.parse_args(line.split()).run.__module__ == module


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_help_fits_a_terminal_of_80_columns(command):
    shown = enginewright(*command.split(), "--help", COLUMNS="80").stdout
    assert max(map(len, shown.splitlines())) < 80


@pytest.mark.parametrize("given", ["0", "few"])
def test_a_count_must_be_one(given):
    done = enginewright("infer", "engine", "image.png", "--top", given)
    assert done.returncode == 2
    assert done.stderr.endswith(f"argument --top: {given} is no whole number from 1 on\n")


@pytest.mark.parametrize(("typed", "meant"), [("inspct", "inspect"), ("infere", "infer"), ("docter", "doctor")])
def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(typed, meant):
    done = enginewright(typed, "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"enginewright: error: '{typed}' is no command; did you mean '{meant}'?" in done.stderr


def test_an_unlike_command_is_answered_with_all():
    assert "known here: new, doctor, inspect, infer, compare, bundle" in enginewright("quux").stderr


def test_a_precision_in_place_of_a_folder_is_answered_with_the_folder(built, tmp_path):
    shutil.copytree(built, tmp_path / "artifacts" / "engines" / "fp32")
    done = enginewright("inspect", "fp32", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("did you mean artifacts/engines/fp32?\n")


def test_before_the_first_run_it_says_what_makes_engines(tmp_path):
    for command in (("inspect", "artifacts/engines/int8"), ("infer", "artifacts/engines/int8", "cat.jpg")):
        done = enginewright(*command, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, "")
        wanted = "there is no engine artifacts/engines/int8: `dvc repro` makes one per precision, in artifacts/engines"
        assert done.stderr == f"enginewright: {wanted}\n"


def test_the_version_is_that_of_the_project():
    done = enginewright("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"enginewright {__version__}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_is_a_script_of_the_shell(shell):
    done = enginewright("--print-completion", shell)
    assert (done.returncode, done.stderr) == (0, "")
    assert all(command in done.stdout for command in COMMANDS)
    if shutil.which(shell):
        assert subprocess.run([shell, "-n"], input=done.stdout, text=True).returncode == 0


def pressed(cwd, *lines):
    """Return what bash offers for each line when Tab is pressed at its end."""
    program = (
        'source /dev/stdin <<< "$SCRIPT"\n'
        "complete -p enginewright | grep -o -- '-F [a-z_]*'\n"
        'press() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_enginewright; echo "${COMPREPLY[@]}"; }\n'
    ) + "".join(f"press enginewright {line}\n" for line in lines)
    script = enginewright("--print-completion", "bash").stdout
    done = subprocess.run(
        ["bash", "-c", program],
        cwd=cwd,
        env=os.environ | {"SCRIPT": script},
        capture_output=True,
        text=True,
        timeout=60,
    )
    function, *offered = done.stdout.splitlines()
    assert (function, done.stderr) == ("-F _shtab_enginewright", "")
    return [set(each.split()) for each in offered]


def test_bash_completes_commands_and_options():
    assert pressed(ROOT, "in", "infer --t") == [{"inspect", "infer"}, {"--top", "--threads"}]


def test_bash_completes_precisions_that_were_made_and_runs_to_compare(tmp_path):
    for place in ("artifacts/engines/fp32", "artifacts/engines/fp16", "reports"):
        (tmp_path / place).mkdir(parents=True)
    git = "git -c user.name=a -c user.email=a@b"
    made = f"git init -q -b main && {git} commit -q --allow-empty -m one && git tag released"
    subprocess.run(["bash", "-c", made], cwd=tmp_path, check=True)
    subprocess.run(["git", "branch", "x$(touch${IFS}run)"], cwd=tmp_path, check=True)
    everything, some, runs, tags = pressed(tmp_path, "bundle ''", "bundle fp1", "compare ''", "compare HEAD rel")
    assert (everything, some) == ({"fp32", "fp16"}, {"fp16"})
    assert runs >= {"HEAD", "HEAD~1", "main", "released", "reports", "x$(touch${IFS}run)"}
    assert not (tmp_path / "run").exists(), "a branch's name was run as a command"
    assert tags == {"released"}


def test_completion_offers_nothing_where_there_is_nothing(tmp_path):
    assert pressed(tmp_path, "bundle fp") == [set()]


TYPED_IN_ZSH = r"""
zmodload zsh/zpty
zpty shell TERM=dumb PS1= zsh -f -i
zpty -w shell 'autoload -Uz compinit; compinit -u -D; eval "$SCRIPT"; enginewright() { print "ran<$*>" }'
zpty -w shell $'enginewright insp\t \nenginewright bundle fp1\t\nexit'
while zpty -r shell line; do print -r -- $line; done
"""


@pytest.mark.skipif(not shutil.which("zsh"), reason="there is no zsh here: `apt-get install zsh` as root")
def test_zsh_completes_what_the_documented_line_registers(tmp_path):
    """It runs on a terminal of its own, where Tab is pressed."""
    assert '`eval "$(enginewright --print-completion zsh)"`' in (ROOT / "docs/reference/cli.md").read_text()
    (tmp_path / "artifacts/engines/fp16").mkdir(parents=True)
    script = os.environ | {"SCRIPT": enginewright("--print-completion", "zsh").stdout}
    typed = ["zsh", "-f", "-c", TYPED_IN_ZSH]
    done = subprocess.run(typed, cwd=tmp_path, env=script, capture_output=True, text=True, timeout=60)
    assert re.findall(r"^ran<(.*?) *>", done.stdout, re.MULTILINE) == ["inspect", "bundle fp16"], done.stdout


@pytest.mark.skipif(not shutil.which("fish"), reason="there is no fish here: `apt-get install fish` as root")
def test_fish_completes_after_the_documented_line():
    line = "enginewright --print-completion fish | source"
    assert f"`{line}`" in (ROOT / "docs/reference/cli.md").read_text()
    path = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    asked = ["fish", "--no-config", "-c", f"{line}; complete --do-complete 'enginewright in'"]
    done = subprocess.run(asked, env=path, capture_output=True, text=True, timeout=60)
    assert (re.findall(r"(?m)^in\w+", done.stdout), done.stderr) == (["infer", "inspect"], ""), done.stdout


def test_json_of_an_engine_is_its_record_and_what_follows_from_it(built):
    done = enginewright("inspect", built, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    record, told = EngineRecord.read(built / "engine.json"), json.loads(done.stdout)
    derived = {"executed": {"fp32": 3}, "share_as_asked": 1.0, "identity": record.identity}
    assert told == json.loads((built / "engine.json").read_text()) | derived


def test_only_terminals_get_colours(tmp_path):
    error = ("inspect", tmp_path)
    assert COLOUR in on_a_terminal(*error, NO_COLOR="")
    assert COLOUR not in on_a_terminal(*error, NO_COLOR="1")
    assert COLOUR not in on_a_terminal(*error, TERM="dumb")
    assert COLOUR not in enginewright(*error).stderr
    assert COLOUR in on_a_terminal("doctor", cwd=ROOT)
    assert COLOUR not in enginewright("doctor").stdout


def test_a_closed_pipe_is_no_error(built):
    command = f"{sys.executable} -m enginewright.cli inspect {built} --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("{0\n", "")


def test_the_help_and_doctor_load_no_packages():
    program = "import sys, enginewright.cli.main as cli; cli.build_parser(['doctor']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"numpy", "pandas", "onnx", "pydantic", "torch", "jinja2", "openvino"}


def test_an_interrupt_is_a_sentence():
    program = (
        "import sys, enginewright.cli.commands.doctor\n"
        "def interrupted(target): raise KeyboardInterrupt\n"
        "enginewright.cli.commands.doctor.examine = interrupted\n"
        "sys.argv = ['enginewright', 'doctor']\n"
        "from enginewright.cli.main import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "enginewright: interrupted; nothing half-written was kept\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(built, closed):
    command = f"{sys.executable} -m enginewright.cli inspect {built} {closed}"
    done = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_name_that_the_locale_cannot_write_is_escaped():
    done = enginewright("inspect", "caf\u00e9", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert done.stderr.startswith("enginewright: there is no engine caf\\xe9")


@pytest.mark.parametrize("command", [["inspect", ""], ["infer", "", "image.png"], ["compare", "", "reports"]])
def test_an_empty_path_is_not_the_present_folder(command):
    done = enginewright(*command)
    assert done.returncode == 2
    assert "it is empty: was a variable of the shell not set?" in done.stderr


def test_swapped_engine_and_images_give_a_message_about_the_engine(built, tmp_path):
    done = enginewright("infer", str(tmp_path), str(built))
    assert done.returncode == 1
    assert f"{tmp_path} is not an engine's folder" in done.stderr
