"""The samples on which engines differ from PyTorch most, as pictures within the page."""

import base64
from pathlib import Path
from typing import NamedTuple

from enginewright.accuracy.examples import EXAMPLES, Example, Examples
from enginewright.core.precisions import QUANTIZED
from enginewright.report.evidence import Findings
from enginewright.report.verdict import recommend


class Drawn(NamedTuple):
    """An example with its picture, as an address that holds it."""

    example: Example
    picture: str  # empty for a text

    @property
    def caption(self) -> str:
        same, lead = self.example.same, self.example.lead
        if lead is not None:
            return f"{self.example.sample}: " + (f"{lead:.0%} of the lead left" if same else "another answer")
        return self.example.sample + ("" if same is None else f": {same:.0%} the same")


def gather_examples(findings: Findings, folder: Path) -> dict[str, list[Drawn]]:
    """Return examples of the precision to ship and of quantized ones: others hardly differ, and the page is kept."""
    chosen = recommend(findings)
    found: dict[str, list[Drawn]] = {}
    for entry in findings.precisions:
        if entry.precision in QUANTIZED or (chosen and entry.precision == chosen.precision):
            files = folder / entry.precision
            drawn = [
                Drawn(each, _address(files / each.file) if each.file else "")
                for each in Examples.read(files / EXAMPLES).examples
            ]
            found |= {entry.precision: drawn} if drawn else {}
    return found


def _address(file: Path) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(file.read_bytes()).decode()}"
