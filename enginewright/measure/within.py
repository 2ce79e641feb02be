"""Find how many samples a second an engine serves while 99 of 100 requests are answered within a latency.

Where clients ask back to back, the throughput pass tells. Where single samples come at random times, a server gathers
them into batches: such a queue is simulated with the calls that the pass timed, in milliseconds for each setting. Then
the best setting is run in earnest, and at lower rates until it keeps the latency.
"""

import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from heapq import heapreplace
from itertools import islice
from math import inf
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from enginewright.core.params.build import BenchmarkParams
from enginewright.data.feeds import middle_of
from enginewright.data.sample_set import SampleSet
from enginewright.measure.benchmark import Answers, OpenFor
from enginewright.measure.records import Kept, Within
from enginewright.measure.timing import Contender

DELAYS = (0.0, 0.1, 0.25)  # that the first sample of a batch waits for others, as shares of the latency
LIMITS = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)  # of the curve, likewise
SIMULATED = 10_000  # samples
STEPS = 8  # of halving the rates in doubt
BUSIEST = 0.95  # of the most that calls could answer: beyond it, queues grow for longer than is simulated
SIMPLER = 1.01  # a larger batch, more requests in flight or a longer delay must gain more than this
WINDOWS, DRAWS = 20, 40  # of measured time, and how often they are drawn anew for an interval
SECONDS, TRIES, SLOWER = 3.0, 5, 0.9  # of a run in earnest; each further try is at this share of the rate before

Asks = Sequence[Contender]  # by the samples in a batch, counted from 1
Worker = tuple[Asks, ThreadPoolExecutor]
Times = Sequence[float] | NDArray[np.float64]
Timed = Mapping[tuple[int, int], Times]  # the seconds of calls by batch size and requests in flight


class Serving(NamedTuple):
    batch: int  # the most samples in one
    requests: int  # in flight
    delay: float  # seconds that the first sample of a batch waits for others

    def ready(self, arrivals: Sequence[float], first: int) -> float:
        """Return when the batch that begins with a sample may leave: it is full, or has waited long enough."""
        last = first + self.batch - 1
        return min(arrivals[first] + self.delay, arrivals[last] if last < len(arrivals) else inf)

    def stop(self, arrivals: Sequence[float], first: int, now: float) -> int:
        """Return the number of the sample that follows those in the batch."""
        return bisect_right(arrivals, now, first + 1, min(first + self.batch, len(arrivals)))


class Queue:
    """A queue of samples that come at random times."""

    def __init__(self, timed: Timed, padded: bool, rng: np.random.Generator):
        self.arrivals = rng.exponential(size=SIMULATED).cumsum()  # one a second
        self.luck = rng.random(SIMULATED).tolist()  # the share of the calls that the call of each is slower than
        self.calls = {key: sorted(times) for key, times in timed.items()}
        self.padded = padded  # whether all batches are filled up to the largest, as Triton does for OpenVINO

    def filled_up(self, batch: int) -> list[int]:
        """Return the size that a batch of 1, 2 and so on is filled up to: the next of those that were timed."""
        sizes = {batch} if self.padded else {size for size, _ in self.calls}
        return [min(size for size in sizes if size >= samples) for samples in range(1, batch + 1)]

    def seconds(self, setting: Serving) -> list[list[float]]:
        """Return the calls that were timed, from the fastest on, by the samples in a batch, counted from 1."""
        return [self.calls[size, setting.requests] for size in self.filled_up(setting.batch)]

    def keeps(self, setting: Serving, rate: float, limit: float) -> bool:
        """Tell whether 99 of 100 samples are answered within the limit, and stop as soon as they cannot be."""
        answers = simulate((self.arrivals / rate).tolist(), self.luck, self.seconds(setting), setting)
        late = (seconds for seconds in answers if seconds > limit)
        return next(islice(late, SIMULATED // 100, None), None) is None

    def most(self, setting: Serving, limit: float, least: float = 0.0) -> float:
        """Return the highest rate within the limit, or 0 if that is not above `least`."""
        high = BUSIEST * setting.batch * setting.requests / float(np.mean(self.seconds(setting)[-1]))
        low = max(SIMPLER * least, high / (1 << STEPS))
        if low >= high or not self.keeps(setting, low, limit):
            return 0.0
        for _ in range(STEPS):
            rate = (low + high) / 2
            low, high = (rate, high) if self.keeps(setting, rate, limit) else (low, rate)
        return low

    def best(self, limit: float) -> tuple[Serving | None, float]:
        """Return the setting with the highest rate within a limit in seconds. Of those that are alike, the simplest."""
        chosen, most = None, 0.0
        for requests, batch, delay in sorted((key[1], key[0], share * limit) for key in self.calls for share in DELAYS):
            setting = Serving(batch, requests, delay)
            if (batch > 1 or not delay) and (rate := self.most(setting, limit, most)):
                chosen, most = setting, rate
        return chosen, most


def simulate(
    arrivals: Sequence[float], luck: Sequence[float], seconds: Sequence[Sequence[float]], setting: Serving
) -> Iterator[float]:
    """Yield the seconds until each sample is answered. All calls take as long as where all requests are in flight."""
    free, first = [0.0] * setting.requests, 0  # when each request is free again: a heap
    while first < len(arrivals):
        begins = max(free[0], setting.ready(arrivals, first))
        stop = setting.stop(arrivals, first, begins)
        calls = seconds[stop - first - 1]
        ends = begins + calls[int(luck[first] * len(calls))]
        heapreplace(free, ends)
        yield from [ends - arrival for arrival in arrivals[first:stop]]
        first = stop


def serve(workers: Sequence[Worker], arrivals: Sequence[float], setting: Serving) -> NDArray[np.float64]:
    """Answer samples that come at these times, and return the seconds until each was answered."""
    for ask, thread in ((ask, thread) for asks, thread in workers for ask in asks):
        thread.submit(ask).result()  # one after the other: a capture must have the GPU to itself
    answered, turn, first, began = np.zeros(len(arrivals)), Lock(), 0, time.perf_counter()

    def work(asks: Asks) -> None:
        nonlocal first
        while True:
            with turn:
                if (start := first) == len(arrivals):
                    return
                time.sleep(max(0.0, began + setting.ready(arrivals, start) - time.perf_counter()))
                first = stop = setting.stop(arrivals, start, time.perf_counter() - began)
            asks[stop - start - 1]()
            answered[start:stop] = time.perf_counter() - began - np.array(arrivals[start:stop])

    for future in [thread.submit(work, asks) for asks, thread in workers]:
        future.result()
    return answered


def search_within(
    answers: Answers, padded: bool, open_for: OpenFor, samples: SampleSet, params: BenchmarkParams
) -> Within | None:
    """Search with what the throughput pass timed, and run what was found."""
    if not (milliseconds := params.within_ms):
        return None
    limit, rng = milliseconds / 1000, np.random.default_rng(params.seed)

    def kept(setting: Serving, rate: float, took: Times) -> Kept:
        slowest = [1000 * np.percentile(_redrawn(took, rng), 99) for _ in range(DRAWS)]
        low, high = middle_of(slowest, params.confidence)
        batch, requests, delay = setting
        times = {"delay": 1000 * delay, "p99": 1000 * float(np.percentile(took, 99)), "low": low, "high": high}
        return Kept(batch=batch, requests=requests, images_per_second=float(rate), **times)

    timed = {(one.batch, one.requests): times for one, times in answers.items()}
    queue, at_random, low, high = Queue(timed, padded, rng), None, 0.0, 0.0
    setting, promised = queue.best(limit)
    if setting:
        again = ({key: _redrawn(times, rng) for key, times in timed.items()} for _ in range(DRAWS))
        rates = [Queue(each, padded, rng).most(setting, limit) for each in again]
        low, high = middle_of(rates, params.confidence)
        with ExitStack() as opened:
            workers, filled = list[Worker](), queue.filled_up(setting.batch)
            for engine in map(opened.enter_context, open_for(setting.requests)):
                bound = {size: engine.bind(samples.cycled(size)) for size in {*filled}}
                workers.append(([bound[size] for size in filled], opened.enter_context(ThreadPoolExecutor(1))))
            for rate in promised * SLOWER ** np.arange(TRIES):
                arrivals = (rng.exponential(size=1 + int(rate * SECONDS)).cumsum() / rate).tolist()
                took = serve(workers, arrivals, setting)
                if np.percentile(took, 99) <= limit:
                    at_random = kept(setting, rate, took)
                    break
    fitting = [one for one in answers if one.p99 <= milliseconds]
    best = max(fitting, key=lambda one: one.images_per_second, default=None)
    one = (Serving(best.batch, best.requests, 0.0), best.images_per_second, answers[best]) if best else None
    return Within(
        milliseconds=milliseconds,
        back_to_back=kept(*one) if one else None,
        at_random=at_random,
        promised=promised,
        low=low,
        high=high,
        least=min(one.p99 for one in answers),
        curve=tuple((share * milliseconds, queue.best(share * limit)[1]) for share in LIMITS),
    )


def _redrawn(times: Times, rng: np.random.Generator) -> NDArray[np.float64]:
    windows = np.array_split(times, min(WINDOWS, len(times)))
    return np.concatenate([windows[number] for number in rng.integers(len(windows), size=len(windows))])
