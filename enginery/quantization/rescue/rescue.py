"""Try what makes an int8 graph closer to the exact one, and keep what proves itself on other samples."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import onnx

from enginery.core.errors import EngineryError
from enginery.core.params.precisions import RescueName
from enginery.data.feeds import Feeds
from enginery.data.sample_set import SampleSet
from enginery.graph.as_written import open_as_written
from enginery.graph.onnx_file import fixed_batch
from enginery.quantization.calibration.auto import error_of
from enginery.quantization.rescue.records import Rescue, Rescued, Tried

FITTED, CONFIRMED = 32, 64  # the most samples to fit a rescue to, and those that must confirm it
BATCH = 8
ENOUGH = 0.01  # an error that bf16 causes, too: below it, nothing is tried unless it is asked for by name
MARGIN = 0.05  # the least gain, as a share of the error: gains on other samples were up to six points smaller

Write = Callable[[Rescued], onnx.ModelProto]  # the graph in int8
Attempt = Callable[[Rescued, Sequence[Feeds]], Rescued | None]  # None where nothing can be changed


class Trial:
    """Samples to fit rescues to, and others that tell how far an int8 graph is from the exact one."""

    def __init__(self, exact: onnx.ModelProto, samples: SampleSet) -> None:
        count = len(samples)
        self.fitted = min(FITTED, max(1, count // 2))
        self.confirmed = max(1, min(CONFIRMED, count - self.fitted))
        self._batch, self._samples = fixed_batch(exact), samples
        self.fitting = list(self._batches(0, self.fitted))
        session = open_as_written(exact)
        self._checks = [(feeds, session.run(None, dict(feeds))) for feeds in self._batches(self.fitted, self.confirmed)]

    def error(self, model: onnx.ModelProto) -> float:
        """Return the mean over outputs and samples of the error of each, relative to the size of the exact output."""
        session = open_as_written(model)
        errors = [
            [error_of(found, exact) for found, exact in zip(session.run(None, dict(feeds)), wanted, strict=True)]
            for feeds, wanted in self._checks
        ]
        return float(np.mean(errors))

    def _batches(self, first: int, count: int) -> Iterator[Feeds]:
        chosen = (first + np.arange(count)) % len(self._samples)
        for places in self._samples.places(chosen, self._batch or BATCH, whole=bool(self._batch)):
            yield self._samples.read_at(chosen[places])


class Answer(NamedTuple):
    record: Rescue
    rescued: Rescued


def find_rescues(
    precision: str, given: Rescued, attempts: Mapping[RescueName, Attempt], named: bool, trial: Trial, write: Write
) -> Answer:
    """Try each and all of them, and keep the fewest that do no worse than more. What is `named` must be possible."""
    error = trial.error(write(given))
    enough = None if named else ENOUGH
    best, kept, lowest, tried = given, tuple[RescueName, ...](), error, []
    for names, changed in _made(given, attempts if enough is None or error >= enough else {}, trial.fitting):
        if changed is None and named:
            raise EngineryError(
                f"precisions.{precision}.rescue: {names[-1]} does not apply to this graph, in which it finds nothing "
                "to change: remove it"
            )
        after = None if changed is None else trial.error(write(changed))
        tried.append(Tried(names=names, error=after))
        if changed is not None and after is not None and after < (1 - MARGIN) * lowest:
            best, kept, lowest = changed, names, after
    record = Rescue(
        precision=precision,
        samples=(trial.fitted, trial.confirmed),
        error=error,
        tried=tuple(tried),
        kept=kept,
        enough=enough,
    )
    return Answer(record, best)


def _made(
    given: Rescued, attempts: Mapping[RescueName, Attempt], fitting: Sequence[Feeds]
) -> Iterator[tuple[tuple[RescueName, ...], Rescued | None]]:
    """Yield what each makes of what is given, and of what those before it have made: one may need another to help."""
    made: dict[tuple[RescueName, ...], Rescued] = {(): given}
    for name, attempt in attempts.items():
        for names, before in list(made.items()):
            if (changed := attempt(before, fitting)) is not None:
                made[*names, name] = changed
            if changed is not None or not names:
                yield (*names, name), changed
