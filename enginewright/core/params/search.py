from typing import Self

from pydantic import Field

from enginewright.core.params.section import Section


class SearchParams(Section):
    """The time to look for the layers that a precision must leave in floating point."""

    seconds: float = Field(gt=0)

    @classmethod
    def read_for(cls, precision: str) -> Self:
        return cls.read_at(f"search.{precision}")
