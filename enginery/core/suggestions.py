"""What someone who mistyped may have meant."""

import difflib
from collections.abc import Collection


def suggestion(given: str, known: Collection[str]) -> str:
    """The end of a sentence that says what is wrong."""
    nearest = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    if nearest:
        return f"; did you mean '{nearest[0]}'?"
    return f"; known here: {', '.join(known)}" if known else ""
