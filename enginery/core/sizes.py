"""How large a file is, in words."""

MEGABYTE, KILOBYTE = 1_000_000, 1_000


def file_size(count: int) -> str:
    """In kB what is less than a MB: a tiny engine would have 0.0 of them."""
    return f"{count / MEGABYTE:.1f} MB" if count >= MEGABYTE else f"{count / KILOBYTE:.1f} kB"
