"""The base of each JSON document that one stage hands to the next."""

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from enginewright.core.errors import EnginewrightError
from enginewright.core.files import new_file


class Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    def write(self, path: Path) -> None:
        with new_file(path) as temporary:
            temporary.write_text(self._text(), encoding="utf-8")

    def write_if_new(self, path: Path) -> None:
        """Write unless the file already says the same. DVC then sees that what was made from it is up to date."""
        if not path.is_file() or path.read_text(encoding="utf-8") != self._text():
            self.write(path)

    def _text(self) -> str:
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def read(cls, path: Path) -> Self:
        try:
            return cls.parse(path.read_bytes(), str(path))
        except FileNotFoundError:
            raise EnginewrightError(f"{path} is missing: run `dvc repro` to make it") from None
        except EnginewrightError as error:
            raise EnginewrightError(f"{error}: `dvc repro` makes it again") from None

    @classmethod
    def parse(cls, content: bytes, origin: str) -> Self:
        try:
            return cls.model_validate_json(content)
        except ValidationError as error:
            first = error.errors()[0]
            place = " ".join(".".join(str(part) for part in first["loc"]).split())
            wrong = f"{place}: {first['msg']}" if place else first["msg"]
            raise EnginewrightError(f"{origin} is damaged or of another version of Enginewright ({wrong})") from None
