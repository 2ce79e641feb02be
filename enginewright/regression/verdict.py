"""The verdict of the report: verdict.json."""

from enginewright.core.record import Record


class Verdict(Record):
    """The precision to ship, and for each precision the reasons why it fails, if it does. `unsure` has those that fail
    only because there are too few samples to be sure of them, where params.yaml says that one must be. Where the race
    cannot tell which precision is the fastest, none is recommended, one is offered, and `doubt` says why."""

    recommended: str | None
    offered: str | None = None
    doubt: str = ""
    failures: dict[str, tuple[str, ...]]
    unsure: dict[str, tuple[str, ...]]
