"""The section `samples.text`: how a text becomes numbers."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from enginewright.core.params.section import Section

IDS, MASK, TYPES = "ids", "mask", "types"
MEANINGS = {  # of an input, by the names that are usual for it
    "input_ids": IDS, "ids": IDS, "tokens": IDS,
    "attention_mask": MASK, "mask": MASK, "input_mask": MASK,
    "token_type_ids": TYPES, "segment_ids": TYPES, "type_ids": TYPES,
}  # fmt: skip


class TextPreprocessing(Section):
    """The way a text becomes token ids, and a batch of texts arrays. What a tokenizer's file says of padding and of
    truncation does not count, but for the token that it pads with."""

    tokenizer: str
    longest: int = Field(default=128, ge=1, le=65536)
    multiple_of: int = Field(default=8, ge=1)
    inputs: Annotated[tuple[str, ...], Field(min_length=1)] = ("input_ids", "attention_mask")
    dtype: Literal["int64", "int32"] = "int64"
    padding: str | None = Field(default=None, min_length=1)
    spare_rows: bool = False

    @property
    def shortest(self) -> int:
        return min(self.multiple_of, self.longest)

    @property
    def varies(self) -> bool:
        return self.shortest < self.longest

    @property
    def meanings(self) -> dict[str, str]:
        """Return what each input takes."""
        return {name: MEANINGS[name] for name in self.inputs}

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        for name in self.inputs:
            if name not in MEANINGS:
                raise ValueError(f"inputs: '{name}' is none of the usual names, which are {', '.join(MEANINGS)}")
        meanings = [MEANINGS[name] for name in self.inputs]
        if IDS not in meanings or len(set(meanings)) < len(meanings):
            raise ValueError(
                f"inputs: one input takes the ids, and at most one each a mask and types; got {self.inputs}"
            )
        return self
