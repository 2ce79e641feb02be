"""The images of containers/: pinned, without root, and set up by the commands that CI runs."""

import re

import pytest
from support.paths import ROOT

FILES = {path.stem: path.read_text() for path in (ROOT / "containers").glob("*.Containerfile")}
BASES = {  # a tag of one version: of Python with its digest, of NVIDIA's image of TensorRT with the month
    "cpu": r"docker\.io/library/python:3\.12\.\d+-slim-bookworm@sha256:[0-9a-f]{64}",
    "gpu": r"nvcr\.io/nvidia/tensorrt:\d\d\.\d\d-py3",
}


def instructions(name):
    """Return pairs of an instruction and its arguments, in one line each."""
    text = re.sub(r"(?m)^#.*\n", "", FILES[name]).replace("\\\n", "")
    return [tuple(re.sub(r" +", " ", line).split(" ", 1)) for line in text.splitlines()]


@pytest.mark.parametrize("name", BASES)
def test_an_image_is_pinned_and_its_user_is_not_root(name):
    assert FILES.keys() == BASES.keys()
    written = instructions(name)
    assert re.fullmatch(BASES[name], written[0][1])
    assert [what for what, _ in written] == ["FROM", "SHELL", "RUN", "USER", "WORKDIR", "COPY", "RUN", "CMD"]
    packages, user = written[2][1], dict(written)["USER"]
    assert "install --yes --no-install-recommends" in packages
    assert "rm -rf /var/lib/apt/lists/*" in packages
    assert f"--uid {user} " in packages
    assert written[5][1] == f"--chown={user} . ."


def test_the_commands_are_those_of_ci():
    nightly = (ROOT / ".github/workflows/nightly.yml").read_text()
    (gpu,) = re.findall(r"- run: (make \.venv/ready .*)", nightly)
    assert [dict(instructions(name))["RUN"] for name in ("cpu", "gpu")] == [
        f"{command} && rm -rf ~/.cache" for command in ("make .venv/ready", gpu)
    ]
    assert {dict(instructions(name))["CMD"] for name in FILES} == {'["make", "repro"]'}


def test_a_container_makes_anew_what_git_does_not_keep():
    ignored = [line.removeprefix("**/").strip("/") for line in (ROOT / ".dockerignore").read_text().splitlines()]
    for line in (ROOT / ".gitignore").read_text().splitlines():
        if line and not line.startswith(("#", "!")):
            assert line.removesuffix("/*").strip("/") in ignored, line
