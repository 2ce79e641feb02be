"""Read and write small pieces of text that several rooms share."""

import difflib
from argparse import ArgumentTypeError
from collections.abc import Collection, Sequence
from contextlib import suppress


def confidence(given: str) -> float:
    """Read an argument of the command line."""
    with suppress(ValueError):
        if 0.5 < (value := float(given)) < 1:
            return value
    raise ArgumentTypeError(f"{given} is no number between 0.5 and 1")


MEGABYTE, KILOBYTE = 1_000_000, 1_000


def file_size(count: int) -> str:
    """Write a size in MB, or in kB below 1 MB, where a tiny engine would otherwise have 0.0 MB."""
    return f"{count / MEGABYTE:.1f} MB" if count >= MEGABYTE else f"{count / KILOBYTE:.1f} kB"


def figure(value: float, unit: str) -> str:
    """Write the value of a metric: a share in percent, or a plain number."""
    rounded = round(value, 4) + 0.0  # no sign is left before a zero
    return f"{rounded:.2%}" if unit == "%" else f"{rounded:.4f}"


def as_in_yaml(value: object) -> str:
    """Write a value as params.yaml has it."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_in_yaml, value))}]"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def suggestion(given: str, known: Collection[str], otherwise: str | None = None) -> str:
    """Return the end of a sentence that calls `given` unknown: the nearest known name, or all of them; where these are
    too many, say `otherwise`."""
    if nearest := difflib.get_close_matches(given, known, n=1, cutoff=0.5):
        return f"; did you mean '{nearest[0]}'?"
    if otherwise is not None:
        return otherwise
    return f"; known here: {', '.join(known)}" if known else ""


def counted(count: int, what: str) -> str:
    """Write a number of things: 1 core, 2 cores, 2 classes."""
    return f"{count} {what}" if count == 1 else f"{count} {what}{'es' if what.endswith('s') else 's'}"


def first_few(names: Sequence[str], most: int = 5) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def is_unicode(text: str) -> bool:
    """Tell whether a text can be written: JSON may hold half a character, such as "\\ud800", file names any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """Escape what would control a terminal. Lines stay lines."""
    return "".join(each if each.isprintable() or each == "\n" else repr(each)[1:-1] for each in text)


def in_one_line(error: BaseException) -> str:
    """Return all lines, since some libraries give the reason in the last ones."""
    return " ".join(str(error).split())


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
