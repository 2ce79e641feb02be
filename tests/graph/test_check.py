import numpy as np
import pytest
from support.errors import error_of

from enginewright.core.errors import EnginewrightError
from enginewright.graph.onnx_file import check_graph


def logits(*values):
    return {"logits": np.array([values])}


def test_a_graph_within_the_limit_passes_with_its_errors():
    check = check_graph(logits(3.0, 4.0), logits(3.0, 4.5), 0.2, "test")
    assert (check.samples, check.max_abs_error, check.relative_error) == (1, 0.5, 0.1)


@pytest.mark.parametrize("got", [[3.0, 5.0], [3.0, np.nan], [np.inf, 4.0]])
def test_a_graph_beyond_the_limit_stops_the_pipeline(got):
    with pytest.raises(
        EnginewrightError, match=r"simplify: wrong: the relative error of logits is .* may be 1e-01 at most"
    ):
        check_graph(logits(3.0, 4.0), logits(*got), 0.1, "simplify: wrong")


def test_the_worst_of_several_outputs_is_checked_and_named():
    wanted = {"scores": np.ones((2, 3)), "map": np.ones((2, 4, 4))}
    close = {"scores": np.full((2, 3), 1.01), "map": np.full((2, 4, 4), 1.05)}
    assert check_graph(wanted, close, 0.1, "test").relative_error == pytest.approx(0.05)
    for broken in (1.5, np.nan):
        with pytest.raises(EnginewrightError, match="test: the relative error of map is"):
            check_graph(wanted, close | {"map": np.full((2, 4, 4), broken)}, 0.1, "test")


def test_a_graph_whose_output_has_another_shape_stops_the_pipeline():
    wanted, got = {"map": np.ones((2, 4, 1))}, {"map": np.ones((2, 1, 4))}  # numpy would broadcast these
    told = error_of(check_graph, wanted, got, 9.0, "export: wrong")
    assert told == "export: wrong: map has shape (2, 1, 4) and should have (2, 4, 1)"
