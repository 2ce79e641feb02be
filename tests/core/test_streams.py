"""Printing never lets a text control the terminal."""

import io
import sys

import pytest

from enginewright.core.process import escape_what_is_printed


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("cat \x1b[2J\x1b]0;pwned\x07", r"cat \x1b[2J\x1b]0;pwned\x07"),
        ("\x9b2J \u202ecat", r"\x9b2J \u202ecat"),
        ("Straße, 猫\n\ttwo lines", "Straße, 猫\n\ttwo lines"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
    ],
)
def test_what_would_control_the_terminal_is_escaped(monkeypatch, printed, shown):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "utf-8", write_through=True))
    monkeypatch.setattr(sys, "stderr", None)
    escape_what_is_printed()
    escape_what_is_printed()
    print(printed, end="")
    assert written.getvalue().decode() == shown
