"""Scratch memory that contexts of an engine share: they compute in turns, and only copies go on side by side."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock

from enginewright.engine.gpu.cuda import Buffer, Event, Stream


class Scratch:
    """Memory that is freed with the last of its users."""

    def __init__(self, size: int, users: int) -> None:
        self.size, self._users, self._lock = size, users, Lock()
        self._held = ExitStack()
        buffer = Buffer(max(size, 1))
        self._held.callback(buffer.close)
        self.address, self._last = buffer.address, Event()
        self._held.callback(self._last.close)

    @contextmanager
    def turn(self, stream: Stream) -> Iterator[None]:
        """Let what is put on the stream meanwhile begin after what others compute. The GPU waits, not the host."""
        with self._lock:
            stream.wait_for(self._last)
            yield
            stream.mark(self._last)

    def close(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._held.close()
