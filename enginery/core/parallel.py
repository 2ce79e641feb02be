"""Work on several cores, in order, within little memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from enginery.core.cores import usable_cores

Item = TypeVar("Item")
Result = TypeVar("Result")
AHEAD = 4  # items for each core that may be in work, or done and not yet taken


def in_parallel(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yield the results in order, and work only a few items ahead: Executor.map would keep all results in memory."""
    cores = usable_cores()
    with ThreadPoolExecutor(cores) as pool:
        waiting: deque[Future[Result]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * cores:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
