import signal
import subprocess
import sys

import pytest
from support.paths import ROOT

from enginewright.core.files import new_file, new_folder, sha256, sha256_of

MAKERS = [new_file, new_folder]


def write(maker, unfinished, text):
    """Write as a stage does: the file itself, or a file in the folder."""
    (unfinished if maker is new_file else unfinished / "inside").write_text(text)


def content(maker, path):
    return (path if maker is new_file else path / "inside").read_text()


@pytest.mark.parametrize("maker", MAKERS)
def test_the_name_is_taken_when_the_block_ends_well(maker, tmp_path):
    with maker(tmp_path / "out") as unfinished:
        write(maker, unfinished, "whole")
        assert not (tmp_path / "out").exists()
    assert content(maker, tmp_path / "out") == "whole"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


@pytest.mark.parametrize("maker", MAKERS)
def test_an_earlier_result_is_replaced(maker, tmp_path):
    for text in ("first", "second"):
        with maker(tmp_path / "out") as unfinished:
            write(maker, unfinished, text)
    assert content(maker, tmp_path / "out") == "second"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def fail_while_writing(maker, path, error):
    with maker(path) as unfinished:
        write(maker, unfinished, "half")
        raise error


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_raises_leaves_nothing(maker, error, tmp_path):
    with pytest.raises(error):
        fail_while_writing(maker, tmp_path / "out", error)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("maker", MAKERS)
def test_a_block_that_raises_keeps_the_earlier_result(maker, tmp_path):
    with maker(tmp_path / "out") as unfinished:
        write(maker, unfinished, "earlier")
    with pytest.raises(KeyboardInterrupt):
        fail_while_writing(maker, tmp_path / "out", KeyboardInterrupt)
    assert content(maker, tmp_path / "out") == "earlier"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]


def test_a_new_folder_holds_nothing_of_the_earlier_one(tmp_path):
    for name in ("old", "new"):
        with new_folder(tmp_path / "out") as unfinished:
            (unfinished / name).touch()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["new"]


@pytest.mark.parametrize("maker", MAKERS)
def test_missing_folders_above_are_made(maker, tmp_path):
    with maker(tmp_path / "a" / "b" / "out") as unfinished:
        write(maker, unfinished, "whole")
    assert content(maker, tmp_path / "a" / "b" / "out") == "whole"


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("earlier", [None, "earlier"])
def test_a_process_killed_while_it_writes_leaves_nothing_half_written(maker, earlier, tmp_path):
    out = tmp_path / "out"
    if earlier:
        with maker(out) as unfinished:
            write(maker, unfinished, earlier)
    program = f"""
import os, signal
from pathlib import Path
from enginewright.core.files import {maker.__name__}
with {maker.__name__}(Path({str(out)!r})) as unfinished:
    target = unfinished{"" if maker is new_file else " / 'inside'"}
    with target.open("w") as file:
        file.write("half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
"""
    child = subprocess.run([sys.executable, "-c", program], cwd=ROOT)
    assert child.returncode == -signal.SIGKILL
    if earlier:
        assert content(maker, out) == earlier
    else:
        assert not out.exists()


def test_hashes_are_the_known_ones(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert sha256(tmp_path / "abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_the_hash_of_a_document_depends_on_its_values_and_not_on_the_order_of_its_keys():
    assert sha256_of({"a": 1, "b": [2, 3]}) == sha256_of({"b": [2, 3], "a": 1})
    assert sha256_of({"a": 1, "b": [2, 3]}) != sha256_of({"a": 1, "b": [3, 2]})
