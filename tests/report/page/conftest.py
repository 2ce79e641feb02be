"""Pages of made-up findings."""

import pytest
from support.pages import looked_at


@pytest.fixture
def usual(findings, evidence):
    """fp16 runs as fp32, as on most CPUs."""
    return findings(
        looked_at(evidence("fp32", (1.0, 0.98, 1.02), relative=3e-7)),
        looked_at(evidence("fp16", (1.0, 0.98, 1.02), relative=1e-4, executed="fp32")),
        looked_at(evidence("int8", (4.0, 3.9, 4.1), relative=5e-3)),
    )
