"""Run an engine over a set in parts, here or on other machines."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enginewright.cluster.spread import Work
from enginewright.core.params.inference import InferenceParams
from enginewright.data.feeds import Outputs
from enginewright.data.parts import Part
from enginewright.engine.engine import open_engine


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
