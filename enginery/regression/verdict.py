"""verdict.json: what the report decided."""

from enginery.core.record import Record


class Verdict(Record):
    """What to ship, and for each precision that fails why."""

    recommended: str | None
    failures: dict[str, tuple[str, ...]]
