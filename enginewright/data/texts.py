"""Turn texts into the arrays that a model takes, in the same way everywhere: `TextPreprocessing` describes it.

A tokenizer's file may have its own padding and truncation. Neither counts, so that params.yaml says what happens. A
bundle holds a copy of this file, where it needs NumPy and the library tokenizers alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from enginewright.core.params.samples import TextPreprocessing
if __package__:
    from enginewright.core.errors import EnginewrightError
else:  # in a bundle
    EnginewrightError = ValueError  # type: ignore[assignment, misc]

Text = tuple[str, ...]  # one text, or the two that a model reads as one input
PADDING_TOKENS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>", "</s>")


class Tokens(NamedTuple):
    """A text in numbers. `types` are 1 for the second of two texts, and `cut` tells whether the text was too long."""

    ids: list[int]
    types: list[int]
    cut: bool


class TextReader:
    """A tokenizer, and how its tokens become arrays."""

    def __init__(self, file: Path, how: TextPreprocessing) -> None:
        self.how, self._tokenizer = how, _open_tokenizer(file)
        self.vocabulary = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())
        self._padding = _padding_id(self._tokenizer, how.padding, file)
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(how.longest)

    def tokens(self, texts: Sequence[Text]) -> list[Tokens]:
        """Return the tokens of each text, at most as many as a model may get. Of two texts the longer one is cut."""
        given: list[Any] = [text[0] if len(text) == 1 else tuple(text) for text in texts]
        return [Tokens(each.ids, each.type_ids, bool(each.overflowing)) for each in self._tokenizer.encode_batch(given)]

    def words(self, ids: Sequence[int], special: bool = False) -> str:
        """Return what tokens say, without or with those that a tokenizer puts around and between texts."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=not special))

    def arrays(self, tokens: Sequence[Tokens]) -> dict[str, NDArray[Any]]:
        """Return an array for each input, as long as the longest text needs; the others are padded behind."""
        shape = len(tokens), padded_length(max(len(each.ids) for each in tokens), self.how)
        filled = {"ids": self._padding, "mask": 0, "types": 0}  # by what an input means
        arrays = {meaning: np.full(shape, value, self.how.dtype) for meaning, value in filled.items()}
        for row, each in enumerate(tokens):
            for meaning, values in (("ids", each.ids), ("mask", [1] * len(each.ids)), ("types", each.types)):
                arrays[meaning][row, : len(values)] = values
        return {name: arrays[meaning] for name, meaning in self.how.meanings.items()}


def padded_length(tokens: int, how: TextPreprocessing) -> int:
    """Return the length that a batch has whose longest text has so many tokens."""
    return min(how.longest, -(-max(tokens, 1) // how.multiple_of) * how.multiple_of)


def _open_tokenizer(file: Path) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise EnginewrightError("texts need the package tokenizers: pip install tokenizers") from None
    if not file.is_file():
        raise EnginewrightError(f"the tokenizer {file} does not exist: give a tokenizer.json")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower type
        raise EnginewrightError(f"{file} is no tokenizer.json of the library tokenizers: {error}") from None


def _padding_id(tokenizer: Tokenizer, token: str | None, file: Path) -> int:
    """Return the id to pad with: of the token that the user names, or of that in the file, or of a usual one."""
    if token is None and tokenizer.padding:
        return int(tokenizer.padding["pad_id"])
    possible = PADDING_TOKENS if token is None else (token,)
    found = [known for known in map(tokenizer.token_to_id, possible) if known is not None]
    if not found:
        raise EnginewrightError(
            f"samples.text.padding: {file} knows no token {', '.join(possible)}: name one of its tokens to pad with"
        )
    return int(found[0])
