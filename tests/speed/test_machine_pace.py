import pytest
import torch

from enginery.speed.machine_pace import pace_meter

SERIES = 20  # other programs may take a core during most of them


@pytest.mark.parametrize("threads", [1, 2])
def test_readings_of_the_machine_pace_in_a_row_agree(threads):
    """Else rounds would be set aside though the machine did not change."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        read = pace_meter("cpu", threads)
        series = [sorted(read() for _ in range(11)) for _ in range(SERIES)]
    finally:
        torch.set_num_threads(before)
    assert all(1e-7 < readings[0] < 1e-3 for readings in series)
    assert min(readings[5] / readings[0] for readings in series) < 2
