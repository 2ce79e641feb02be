import pytest
import torch

from enginery.speed.machine_pace import pace_of


@pytest.mark.parametrize("threads", [1, 2])
def test_a_pace_is_that_of_the_machine_and_not_of_the_moment(threads):
    """Readings in a row agree, or rounds would be set aside for nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        read = pace_of("cpu", threads)
        readings = sorted(read() for _ in range(21))
    finally:
        torch.set_num_threads(before)
    assert 1e-7 < readings[0] < 1e-3
    assert readings[10] < 2 * readings[0]
