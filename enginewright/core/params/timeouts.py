from typing import Annotated

from pydantic import Field

from enginewright.core.params.reading import read_yaml
from enginewright.core.params.section import PARAMS_FILE, Section

YEAR = 31_536_000.0  # of seconds; the kernel's clocks do not count without end
Seconds = Annotated[float, Field(gt=0, le=YEAR)] | None


class TimeoutParams(Section, place="timeouts"):
    """How long stages may take. No stage lists it in dvc.yaml: it changes no result."""

    samples: Seconds = None
    weights: Seconds = None
    export: Seconds = None
    simplify: Seconds = None
    reference: Seconds = None
    calibrate: Seconds = None
    rescue: Seconds = None
    search: Seconds = None
    mix: Seconds = None
    convert: Seconds = None
    build: Seconds = None
    validate_: Seconds = Field(default=None, alias="validate")  # pydantic's models have a method of that name
    benchmark: Seconds = None
    race: Seconds = None
    trace: Seconds = None
    report: Seconds = None

    @classmethod
    def of_stage(cls, stage: str) -> float | None:
        """Return the seconds of a stage, or None without a limit. Older projects lack the section."""
        if stage not in {field.alias or name for name, field in cls.model_fields.items()}:
            return None
        given = read_yaml(PARAMS_FILE)
        known = cls.read() if isinstance(given, dict) and cls.place in given else cls()
        seconds: float | None = known.model_dump(by_alias=True)[stage]
        return seconds
