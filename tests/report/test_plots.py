"""DVC's plots: their templates draw fields that the data has."""

import csv
import json
import re
from dataclasses import replace

import pytest
from dvc_render.vega import VegaRenderer
from ruamel.yaml import YAML
from support.paths import ROOT

from enginewright.report.metrics import latency_rows, tradeoff_rows

WRITTEN = YAML(typ="safe").load((ROOT / "dvc.yaml").read_text())["plots"]
PLOTS = {name: plot for entry in WRITTEN for name, plot in entry.items()}
ROWS = {"latency": latency_rows, "tradeoff": tradeoff_rows}


def values_of(node, name):
    """Yield every value of this name, at any depth."""
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
    """Return the template as DVC fills it for two revisions, the earlier one slower."""
    plot = PLOTS[name]
    (x,), (y,) = ([plot[axis]] if isinstance(plot[axis], str) else plot[axis].values() for axis in ("x", "y"))
    slower = [row | {y: str(1.5 * float(row[y]))} for row in rows]
    points = [row | {"rev": rev} for rev, part in (("HEAD", slower), ("workspace", rows)) for row in part]
    named = {key: plot[key] for key in ("title", "template", "x_label", "y_label")}
    renderer = VegaRenderer(points, name, template_dir=str(ROOT / ".dvc/plots"), x=x, y=y, **named)
    return renderer.get_filled_template()


@pytest.mark.parametrize("name", PLOTS)
def test_a_template_is_drawn_from_the_reports_data(name):
    """Vega-Lite itself draws it, and ignores fields that are missing."""
    vega = pytest.importorskip("vl_convert", reason="`make test` installs what draws DVC's plots")
    with (ROOT / f"reports/plots/{name}.csv").open() as file:
        rows = list(csv.DictReader(file))
    drawn = vega.vegalite_to_svg(filled(name, rows), vl_version="5.8")
    assert drawn.count('aria-roledescription="point"') == 2 * len(rows)
    for told in (PLOTS[name]["title"], PLOTS[name]["x_label"], PLOTS[name]["y_label"]):
        assert f">{told}</text>" in drawn, told
    for precision in {row["precision"] for row in rows}:
        assert re.search(rf">{precision}(, [a-z0-9 ]+)?</text>", drawn), precision
    assert not re.search("NaN|undefined|null|Infinity", drawn)


def test_precisions_that_cannot_be_shipped_are_hollow_and_say_why(findings, evidence):
    """Data of an old revision, without a verdict, is drawn without hollow points."""
    vega = pytest.importorskip("vl_convert", reason="`make test` installs what draws DVC's plots")
    found = findings(evidence("fp32"), evidence("fp16", executed="fp32"), evidence("int8", broken=("a",)))
    rows = tradeoff_rows(replace(found, failures={"int8": ("a",)})).astype(str).to_dict("records")
    untold = [{name: value for name, value in row.items() if name != "verdict"} for row in rows]
    drawn, before = (vega.vegalite_to_svg(filled("tradeoff", each), vl_version="5.8") for each in (rows, untold))
    for told in ("fp32", "fp16, ran as fp32", "int8, failed"):
        assert f">{told}</text>" in drawn, told
    assert "Filled: passed. Hollow: failed, or ran as another type than it is called." in drawn
    assert hollow_points(drawn) == 4, "of two precisions in two revisions"
    assert hollow_points(before) == 0


def hollow_points(drawn):
    points = re.findall(r'<path [^>]*aria-roledescription="point"[^>]*>', drawn)
    return sum('fill-opacity="0"' in point for point in points)
