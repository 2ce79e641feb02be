"""DVC's plots: what the templates draw is in the data."""

import csv
import json
import re
from pathlib import Path

import pytest
import test_reporting
from dvc_render.vega import VegaRenderer
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


def filled(name, rows):
    """The template as DVC fills it for two revisions, the earlier one slower."""
    plot = PLOTS[name]
    (x,), (y,) = ([plot[axis]] if isinstance(plot[axis], str) else plot[axis].values() for axis in ("x", "y"))
    slower = [row | {y: str(1.5 * float(row[y]))} for row in rows]
    points = [row | {"rev": rev} for rev, part in (("HEAD", slower), ("workspace", rows)) for row in part]
    named = {key: plot[key] for key in ("title", "template", "x_label", "y_label")}
    renderer = VegaRenderer(points, name, template_dir=str(ROOT / ".dvc/plots"), x=x, y=y, **named)
    return renderer.get_filled_template()


@pytest.mark.parametrize("name", PLOTS)
def test_a_template_is_drawn_from_the_reports_data(name):
    """By Vega-Lite itself, which does not mind fields that are not there."""
    vega = pytest.importorskip("vl_convert", reason="`make test` installs what draws DVC's plots")
    with (ROOT / f"reports/plots/{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    drawn = vega.vegalite_to_svg(filled(name, rows), vl_version="5.8")
    assert drawn.count('aria-roledescription="point"') == 2 * len(rows)
    for told in (
        PLOTS[name]["title"],
        PLOTS[name]["x_label"],
        PLOTS[name]["y_label"],
        *{row["precision"] for row in rows},
    ):
        assert f">{told}</text>" in drawn, told
    assert not re.search("NaN|undefined|null|Infinity", drawn)
