"""Run an engine over a set in parts, here or on other machines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enginery.cluster.spread import Work
from enginery.core.params.inference import InferenceParams
from enginery.data.feeds import Outputs
from enginery.data.parts import Part
from enginery.engine.engine import open_engine


@dataclass(frozen=True)
class EngineWork(Work[Part, list[Outputs]]):
    """Run an engine on machines like the one that it was built for, as each machine says of itself."""

    engine: Path
    inference: InferenceParams

    @contextmanager
    def open(self, threads: int) -> Iterator[Callable[[Part], list[Outputs]]]:
        inference = self.inference.model_copy(update={"threads": threads or self.inference.threads})
        with open_engine(self.engine, None, inference) as engine:
            yield lambda part: [engine.run(feeds) for feeds in part.feeds()]
