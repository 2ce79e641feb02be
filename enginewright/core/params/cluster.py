from typing import Self

from pydantic import Field

from enginewright.core.params.reading import read_yaml
from enginewright.core.params.section import PARAMS_FILE, Section


class ClusterParams(Section, place="cluster"):
    """Where stages spread their work. No stage lists it in dvc.yaml: results differ by no more than rounding."""

    address: str | None = None
    resource: str | None = None
    cores: int = Field(default=1, ge=1)

    @classmethod
    def read_or_default(cls) -> Self:
        """Read the section, which older projects do not have."""
        return cls.read() if cls.place in (read_yaml(PARAMS_FILE) or {}) else cls()
