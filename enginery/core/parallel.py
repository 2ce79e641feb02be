"""Work on several cores, in order, with bounded memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from enginery.core.cores import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 4  # images under way or waiting for the disk, for each core


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """In order, and only a few ahead: Executor.map keeps every result that the disk has not taken yet."""
    cores = usable_cores()
    with ThreadPoolExecutor(cores) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
