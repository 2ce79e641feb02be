"""The error that a call ends in."""

import pytest

from enginewright.core.errors import EnginewrightError


def error_of(call, *arguments, **named):
    """Return the sentence of the EnginewrightError that the call raises."""
    with pytest.raises(EnginewrightError) as caught:
        call(*arguments, **named)
    return str(caught.value)
