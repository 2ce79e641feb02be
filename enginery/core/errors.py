"""The exception that a user is meant to read, and the sentence that other errors become."""

from errno import EDQUOT, EFBIG, ENOSPC, EROFS

from enginery.core.text import printable

LONGEST = 1200  # characters of a sentence, which may quote what stands in a file
# What the readers of JSON and YAML raise, besides errors of their own, for numbers of a thousand digits, dates that do
# not exist, keys that are lists, and brackets within brackets within brackets.
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)
PROTOBUFS = ("google.protobuf.message", "EncodeError")
UNWRITABLE = (EDQUOT, EFBIG, ENOSPC, EROFS)  # of a copy these concern the file that is written, which is named second


class EngineryError(Exception):
    """Raised for what the user can cause and mend: the text says what is wrong, where, and what to do."""


def sentence_of(error: BaseException) -> str | None:
    """Return what to say of an error that a user can cause, or None for a mistake of ours, whose traceback stays."""
    if isinstance(error, EngineryError):
        return _safe(str(error))
    if isinstance(error, OSError):
        file = (error.errno in UNWRITABLE and error.filename2) or error.filename or "the operating system"
        return _safe(f"{file}: {error.strerror or error}")
    if lacks_memory(error):
        return _safe(f"there is not enough memory{f': {error}' if str(error) else ''}")
    return None


def lacks_memory(error: BaseException) -> bool:
    """Tell whether memory ran out, for which Protobuf, which need not be installed, has an error of its own."""
    kind = type(error)
    return isinstance(error, MemoryError) or (kind.__module__, kind.__name__) == PROTOBUFS


def _safe(sentence: str) -> str:
    """Return a sentence that a terminal can show: what it quotes may be long, and control the terminal."""
    return printable(
        sentence if len(sentence) <= LONGEST else f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"
    )
