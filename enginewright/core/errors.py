"""The exception that a user is meant to read, and the sentence that other errors become."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC, EROFS

from enginewright.core.text import printable

LONGEST = 1200  # characters of a sentence, which may quote what stands in a file
# What the readers of JSON and YAML raise, besides errors of their own, for numbers of a thousand digits, dates that do
# not exist, keys that are lists, and brackets within brackets within brackets.
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)
UNWRITABLE = (EDQUOT, EFBIG, ENOSPC, EROFS)  # of a copy these concern the file that is written, which is named second


class EnginewrightError(Exception):
    """Raised for what the user can cause and mend: the text says what is wrong, where, and what to do."""


class CompilerError(EnginewrightError):
    """Raised where a compiler fails on a graph, and nobody but its makers can mend that: others go on."""


def bad_source(what: str) -> EnginewrightError:
    """Return the error of samples that cannot be taken as they are."""
    return EnginewrightError(f"samples.source: {what}")


def sentence_of(error: BaseException) -> str | None:
    """Return what to say of an error that a user can cause, or None for a mistake of ours, whose traceback stays."""
    if isinstance(error, EnginewrightError):
        sentence = str(error)
    elif isinstance(error, OSError):
        file = (error.errno in UNWRITABLE and error.filename2) or error.filename or "the operating system"
        sentence = f"{file}: {error.strerror or error}"
    elif is_out_of_memory(error):
        protobufs = "Protobuf cannot write a graph, of which it takes 2 GB at most"  # its own error says no more
        why = str(error) if isinstance(error, MemoryError) else protobufs
        sentence = f"there is not enough memory{f': {why}' if why else ''}"
    else:
        return None
    if len(sentence) > LONGEST:
        sentence = f"{sentence[: LONGEST // 2]} … {sentence[-LONGEST // 2 :]}"
    return printable(sentence)  # what it quotes may control the terminal


@contextmanager
def errors_in_words(who: str = "", interrupted: str | None = None) -> Iterator[None]:
    """End the program with a sentence, which begins with `who`, at an error that a user can cause, and at Ctrl-C if
    there is something to say of it."""
    try:
        yield
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        sys.exit(f"{who}interrupted; {interrupted}")
    except Exception as error:
        if (sentence := sentence_of(error)) is None:
            raise
        sys.exit(f"{who}{sentence}")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory did not suffice. Protobuf, which is not imported here, then raises an EncodeError."""
    return isinstance(error, MemoryError) or type(error).__name__ == "EncodeError"
