"""Made-up findings for pages."""

import pytest


@pytest.fixture
def usual(findings, evidence):
    """Return findings in which fp16 runs as fp32, as on most CPUs."""
    return findings(
        evidence("fp32", (1.0, 0.98, 1.02), relative=3e-7),
        evidence("fp16", (1.0, 0.98, 1.02), relative=1e-4, executed="fp32"),
        evidence("int8", (4.0, 3.9, 4.1), relative=5e-3),
    )
