import pytest
import torch

from enginewright.measure import contenders as machine_pace
from enginewright.measure.contenders import pace_meter

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


def test_on_a_gpu_host_and_gpu_count_alike(monkeypatch):
    monkeypatch.setattr(machine_pace, "launch_timer", lambda: iter([9.0, 4.0, 5.0]).__next__)
    monkeypatch.setattr(machine_pace, "product_timer", lambda: iter([2.25, 3.0, 4.0]).__next__)
    assert pace_meter("cuda", 1)() == pytest.approx(3.0)  # the geometric mean of 4 and 2.25
