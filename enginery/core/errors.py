"""The exception that a user is meant to read."""


class EngineryError(Exception):
    """Raised for what the user can cause and mend: the text says what is wrong, where, and what to do."""
