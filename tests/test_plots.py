"""DVC's plots: what the templates draw is in the data."""

import json
from pathlib import Path

import pytest
import test_reporting
from ruamel.yaml import YAML

from enginery.reporting.tables import latency_rows, tradeoff_rows

ROOT = Path(__file__).parents[1]
WRITTEN = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["plots"]
PLOTS = {name: plot for entry in WRITTEN for name, plot in entry.items()}
ROWS = {"latency": latency_rows, "tradeoff": tradeoff_rows}
evidence, findings = test_reporting.evidence, test_reporting.findings  # its fixtures


def values_of(node, name):
    """Every value of this name, at any depth."""
    if isinstance(node, dict):
        yield from (value for key, value in node.items() if key == name)
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from values_of(child, name)


@pytest.mark.parametrize("name", PLOTS)
def test_a_template_draws_what_is_in_its_data(name, findings, evidence):
    template = json.loads((ROOT / ".dvc/plots" / f"{PLOTS[name]['template']}.json").read_text())
    columns = set(ROWS[name](findings(evidence("fp32"), evidence("int8"))).columns)
    made = {"rev", *values_of(template, "as")}
    fields = {field for field in values_of(template, "field") if not field.startswith("<DVC_METRIC_")}
    assert fields
    assert fields <= columns | made
    parsed = {column for parse in values_of(template, "parse") for column in parse}
    assert parsed <= columns
