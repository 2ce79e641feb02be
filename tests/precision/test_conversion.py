import re

import pytest

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.precisions import Keep
from enginewright.precision.floats import require_kept_exist


@pytest.mark.parametrize(
    ("keep", "complaint"),
    [
        (Keep(op_types=("Convv",), nodes=()), "keep.op_types: the graph has no Convv; it has Conv, "),
        (Keep(op_types=(), nodes=("nosuch.*",)), "keep.nodes: no node of the graph is named 'nosuch.*', such as "),
    ],
)
def test_kept_operators_and_nodes_must_exist(tiny_graph, keep, complaint):
    with pytest.raises(EnginewrightError, match=re.escape(complaint)):
        require_kept_exist(keep, tiny_graph)


def test_kept_nodes_may_be_a_pattern(tiny_graph):
    require_kept_exist(Keep(op_types=("Gemm",), nodes=("conv.*",)), tiny_graph)
