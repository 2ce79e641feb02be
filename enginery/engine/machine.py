"""machine.json: what a timing is worth."""

from enginery.core.record import Record


class Machine(Record):
    """What a timing is worth: stable facts only, no clocks and no free memory."""

    runtime: str
    runtime_version: str
    device: str
    device_name: str
    capability: str
    driver: str
    cuda: str
    cores: int
    operating_system: str
