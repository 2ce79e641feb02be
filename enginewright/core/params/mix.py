from typing import Literal, Self

from pydantic import Field

from enginewright.core.params.section import Section


class MixParams(Section):
    """Say which precision is mixed with int8, and how candidates are raced."""

    floating: Literal["fp32", "fp16", "bf16"]
    seconds: float = Field(gt=0)  # for each candidate
    traces: str | None  # a folder in data/traces, or None: those of this machine

    @classmethod
    def read_for(cls, precision: str) -> Self:
        return cls.read_at(f"mix.{precision}")
