"""A power cut leaves files of DVC's cache empty, which DVC would restore as results."""

import hashlib
import os

import pytest

from enginewright.pipeline import recovery as after_a_power_cut
from enginewright.pipeline.recovery import CHECKED, OBJECTS, mend_after_a_power_cut

SAID = (
    "1 files of DVC's cache were cut off when the machine stopped, and are removed: what they held is made again when"
)
CONTENT = {"": b"weights", ".dir": b'[{"md5": "1", "relpath": "a"}]'}


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A project whose cache holds a file and a folder, and its cache."""
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    monkeypatch.setattr(after_a_power_cut, "BOOT", tmp_path / "boot")
    (tmp_path / "boot").write_text("first")
    return {suffix: keep(tmp_path, content, suffix) for suffix, content in CONTENT.items()}


def keep(root, content, suffix=""):
    name = hashlib.md5(content).hexdigest()
    path = root / ".dvc/cache" / OBJECTS / name[:2] / (name[2:] + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("suffix", CONTENT)
@pytest.mark.parametrize("cut", [b"", CONTENT[""][:-1]])
def test_what_was_cut_off_is_removed_and_the_rest_stays(tmp_path, kept, suffix, cut):
    assert mend_after_a_power_cut(tmp_path) == []
    kept[suffix].write_bytes(cut)
    assert mend_after_a_power_cut(tmp_path) == []  # the machine has not started again
    (tmp_path / "boot").write_text("second")
    (sentence,) = mend_after_a_power_cut(tmp_path)
    assert sentence.startswith(SAID)
    assert [path.exists() for path in kept.values()] == [path != kept[suffix] for path in kept.values()]
    assert mend_after_a_power_cut(tmp_path) == []


def test_what_was_there_before_the_last_check_is_not_read_again(tmp_path, kept):
    mend_after_a_power_cut(tmp_path)
    checked = (tmp_path / ".dvc/tmp" / CHECKED).stat().st_mtime
    kept[""].write_bytes(b"")
    os.utime(kept[""], (checked - 60,) * 2)
    (tmp_path / "boot").write_text("second")
    assert mend_after_a_power_cut(tmp_path) == []


def test_a_cache_elsewhere_is_found_and_other_files_in_it_stay(tmp_path, kept):
    other = keep(tmp_path, b"x").rename(tmp_path / ".dvc/cache" / OBJECTS / "no-object")
    (tmp_path / ".dvc/cache").rename(tmp_path / "shared")
    (tmp_path / ".dvc/config").write_text("[cache]\n    dir = ../shared\n")
    (tmp_path / "shared" / kept[""].relative_to(tmp_path / ".dvc/cache")).write_bytes(b"")
    assert len(mend_after_a_power_cut(tmp_path)) == 1
    assert (tmp_path / "shared" / other.relative_to(tmp_path / ".dvc/cache")).exists()


def test_before_the_first_run_there_is_nothing_to_check(tmp_path):
    assert mend_after_a_power_cut(tmp_path) == []
