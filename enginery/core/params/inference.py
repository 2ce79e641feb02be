"""The section `inference`."""

from typing import ClassVar, Self

from pydantic import Field

from enginery.core.params.section import Section


class InferenceParams(Section):
    """How a loaded engine runs, wherever it is run."""

    place: ClassVar[str] = "inference"

    threads: int = Field(ge=0)
    cuda_graph: bool

    def on(self, cores: int) -> Self:
        """With the number of threads that 0 stands for."""
        return self.model_copy(update={"threads": self.threads or cores})
