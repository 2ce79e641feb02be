"""The error that a call ends in."""

import pytest

from enginery.core.errors import EngineryError


def error_of(call, *arguments, **named):
    """Return the sentence of the EngineryError that the call raises."""
    with pytest.raises(EngineryError) as caught:
        call(*arguments, **named)
    return str(caught.value)
