"""A line through costs: a fixed part, and a part for each image."""

import pytest

from enginewright.report.where_time_goes import fit_line


def test_a_line_has_the_least_relative_errors_and_says_how_far_it_is_off():
    sizes, costs = [1, 10, 100], [1.1, 10.0, 100.0]
    line = fit_line(sizes, costs)
    assert line.at(1) == pytest.approx(1.1, rel=0.01)  # the least errors in milliseconds leave 4 %
    assert line.deviation == max(abs(cost / line.at(size) - 1) for size, cost in zip(sizes, costs, strict=True))


@pytest.mark.parametrize(
    ("costs", "fixed", "each"),
    [([1.0, 2.1, 4.5], 0, pytest.approx(1.06, 0.02)), ([4.0, 3.9, 3.7], pytest.approx(3.9, 0.02), 0)],
)
def test_no_part_of_a_line_is_below_zero(costs, fixed, each):
    line = fit_line([1, 2, 4], costs)
    assert (line.fixed, line.each) == (fixed, each)
