"""machine.json: the machine that engines are built for and timings belong to."""

from enginewright.core.record import Record


class Machine(Record):
    """The facts that an engine and a timing depend on. All are stable: clocks and free memory are not among them."""

    runtime: str
    runtime_version: str
    device: str
    device_name: str
    capability: str
    driver: str
    cuda: str
    cores: int
    operating_system: str

    def in_words(self) -> str:
        return f"{self.runtime} {self.runtime_version} on {self.device_name}, {self.cores} cores"
