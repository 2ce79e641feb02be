import pytest

from enginewright.core.text import file_size


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "0.0 kB"), (300, "0.3 kB"), (64_012, "64.0 kB"), (1_000_000, "1.0 MB"), (102_345_678, "102.3 MB")],
)
def test_a_size_below_a_megabyte_is_written_in_kilobytes(count, said):
    assert file_size(count) == said
