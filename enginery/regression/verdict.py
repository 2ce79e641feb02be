"""The verdict of the report: verdict.json."""

from enginery.core.record import Record


class Verdict(Record):
    """The precision to ship, and for each precision the reasons why it fails, if it does."""

    recommended: str | None
    failures: dict[str, tuple[str, ...]]
