"""Do work part by part: here, or as tasks of a cluster. The functions and the order of the results are the same."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, Protocol, Self, TypeVar

Result = TypeVar("Result")


class Piece(Protocol):
    def packed(self) -> Self:
        """Return the part with all that it needs in memory, so that it can be sent to another machine."""
        ...


AnyPart = TypeVar("AnyPart", bound=Piece)


@dataclass(frozen=True, kw_only=True)
class Work(Generic[AnyPart, Result]):
    """Some work that is done with each part. A field of a subclass that is a Path names a file or a folder which goes
    along to other machines. `code` are modules that go along, too, by their places in a folder that Python imports
    from."""

    code: Mapping[str, Path] = field(default_factory=dict)
    gpus: int = 0

    def open(self, threads: int) -> AbstractContextManager[Callable[[AnyPart], Result]]:
        """Open what is costly, such as a session, once for many parts. 0 threads are one for each core."""
        raise NotImplementedError


class Cluster(Protocol):
    def do(self, work: Work[AnyPart, Result], parts: Iterable[AnyPart]) -> Iterator[Result]: ...


def spread(work: Work[AnyPart, Result], parts: Iterable[AnyPart], cluster: Cluster | None) -> Iterator[Result]:
    """Yield the result of each part, in order. Without a cluster, this is a plain loop."""
    if cluster is not None:
        yield from cluster.do(work, parts)
        return
    with work.open(threads=0) as do:
        yield from map(do, parts)
