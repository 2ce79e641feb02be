"""The one exception that a user is meant to read."""


class EngineryError(Exception):
    """Something the user can cause and mend: the text says what is wrong, where, and what to do."""
