import pytest
import torch

from enginery.speed.machine_pace import pace_meter


@pytest.mark.parametrize("threads", [1, 2])
def test_readings_of_the_machine_pace_in_a_row_agree(threads):
    """Else rounds would be set aside though the machine did not change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        read = pace_meter("cpu", threads)
        readings = sorted(read() for _ in range(21))
    finally:
        torch.set_num_threads(before)
    assert 1e-7 < readings[0] < 1e-3
    assert readings[10] < 2 * readings[0]
