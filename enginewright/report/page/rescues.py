"""The table of what was tried before a search, and of what each brought."""

from enginewright.core.text import first_few
from enginewright.quantization.rescue.records import Rescue, Tried, errors_in_words
from enginewright.report.page.listing import Table, table


def rescue_table(found: Rescue) -> Table:
    fitted, confirmed = found.samples
    caption = (
        f"Rescues of {found.precision}, fitted to {fitted} calibration samples: the relative error of the outputs of "
        f"{confirmed} others: the mean, and in parentheses that of all at once"
    )
    rows = [["as calibrated", errors_in_words(found.error, found.at_once), _why_no_more(found)]]
    rows += [[" and ".join(each.names), *_brought(each, found)] for each in found.tried]
    return table(caption, ["rescue", "error", "brought"], rows)


def _why_no_more(found: Rescue) -> str:
    if not found.tried:
        return "no rescue is asked for"
    if found.enough is None or found.error >= found.enough:
        return "-"
    return f"below {found.enough:.0%}, so that only what is quick was tried"


def _brought(tried: Tried, found: Rescue) -> tuple[str, str]:
    if tried.error is None:
        return "-", "does not apply to this graph"
    change = tried.error / found.error - 1 if found.error else 0.0
    layers = f": {first_few(found.spared)} in floating point" if found.spared else ""
    verdict = f"kept{layers}" if tried.names == found.kept else "not kept"
    return errors_in_words(tried.error, tried.at_once), f"{change:+.0%}, {verdict}"
