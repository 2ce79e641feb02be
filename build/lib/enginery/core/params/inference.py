from typing import Self

from pydantic import Field

from enginery.core.params.section import Section


class InferenceParams(Section, place="inference"):
    threads: int = Field(ge=0)
    cuda_graph: bool

    def on(self, cores: int) -> Self:
        """Return a copy in which 0 threads have become one for each core."""
        return self.model_copy(update={"threads": self.threads or cores})
