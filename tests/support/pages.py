"""Make report pages from made-up findings, and read their HTML."""

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from html.parser import HTMLParser

import pandas as pd

from enginewright.core.params.all import Params
from enginewright.engine.tools import Tools
from enginewright.graph.onnx_file import GraphCheck
from enginewright.graph.simplify import Simplification
from enginewright.precision.calibration.cache import Calibration
from enginewright.report.evidence import Background
from enginewright.report.page.pictures import trend_rows
from enginewright.report.page.render import render_page
from enginewright.report.verdict import failures_of
from support.paths import ROOT

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Reader(HTMLParser):
    """The content of a page. Reading fails unless every element is closed."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.words = [], Counter(), []
        self.feed(page.replace("<wbr>", ""))
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags[tag] += 1

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & {*self.open}:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def background_of(**changes):
    return Background(
        **{
            "params": Params.read(ROOT / "params.yaml"),
            "simplification": Simplification(
                nodes_before={"Conv": 20, "Relu": 17, "Shape": 4},
                nodes_after={"Conv": 20, "Relu": 17},
                bytes_before=45_000_000,
                bytes_after=44_000_000,
                against_exported=GraphCheck(samples=7, max_abs_error=1e-6, relative_error=1.5e-7),
            ),
            "calibration": Calibration(
                model_sha256="a" * 64,
                samples_sha256="b" * 64,
                preprocessing_sha256="c" * 64,
                samples=256,
                source="measured",
                method="entropy",
                bins=2048,
                percentile=99.99,
                tools={},
                cache_sha256="d" * 64,
                amax={"input": 2.0, "relu": 3.0},
            ),
            "tools": Tools(versions={"numpy": "1.9.10", "onnx": "1.23.2", "torch": "1.9.2"}),
            "rescues": {},
            "searches": {},
        }
        | changes
    )


def page_of(found, background=None, **must_pay):
    judged = replace(found, failures=failures_of(found, must_pay))
    return render_page(judged, background or background_of(), trend_rows([]))


def nights_of(speeds, setting="resnet18 on a machine", precision="int8", verdicts=None, error=0.01):
    """Return rows as trend_rows makes them, one for each night."""
    first = datetime(2026, 11, 20, 2, 17)
    return pd.DataFrame(
        {
            "setting": setting, "date": [first + timedelta(days=day) for day in range(len(speeds))],
            "precision": precision, "speedup": speeds, "relative_error": error,
            "verdict": verdicts or ["no change"] * len(speeds),
        }
    )  # fmt: skip


def page_of_nights(found, *nights):
    judged = replace(found, failures=failures_of(found, {}))
    return render_page(judged, background_of(), pd.concat(nights, ignore_index=True))
