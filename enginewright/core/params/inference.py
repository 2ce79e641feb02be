from typing import Any, Literal, Self, get_args

from pydantic import Field, field_validator

from enginewright.core.params.section import Section

Words = Literal["auto", "all"]
WeightsOnGPU = Words | int  # a number is of megabytes


class InferenceParams(Section, place="inference"):
    threads: int = Field(ge=0)
    cuda_graph: bool
    weights_on_gpu_mb: WeightsOnGPU = "auto"
    share_scratch: bool = False

    @field_validator("weights_on_gpu_mb", mode="before")
    @classmethod
    def _is_a_word_or_a_number(cls, given: Any) -> Any:
        if given in get_args(Words) or (type(given) is int and given >= 0):
            return given
        raise ValueError(f"{given} is none of {', '.join(get_args(Words))}, or a number of megabytes")

    def on(self, cores: int) -> Self:
        """Return a copy in which 0 threads have become one for each core."""
        return self.model_copy(update={"threads": self.threads or cores})
