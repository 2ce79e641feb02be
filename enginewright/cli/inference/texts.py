"""Answer for texts: find them in files, on standard input or among the arguments, and turn them into tokens."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from enginewright.cli.inference.answer import Answer
from enginewright.cli.inference.standard_input import lines_of_standard_input
from enginewright.cli.inference.task import require_readable, run_filled
from enginewright.core.errors import EnginewrightError
from enginewright.core.text import is_unicode
from enginewright.data.manifest import PreparedTexts
from enginewright.data.sample_set import TOKENIZER
from enginewright.data.sources.text_table import ONE, SUFFIXES, TWO, read_rows, text_in
from enginewright.data.texts import Text, TextReader
from enginewright.engine.engine import Engine

LONGEST_NAME = 4096  # of a file


class TextsReader:
    """An engine that takes texts, whose outputs its task reads."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        prepared = engine.record.text
        assert prepared, "the caller looked"
        self._engine, self._task = engine, require_readable(engine.record, folder)
        self._reader, self.cut = TextReader(folder / TOKENIZER, prepared.how), 0

    def answer(self, texts: Sequence[Text], top: int, draws: bool = False) -> Iterator[Answer]:
        tokens = self._reader.tokens(texts)
        self.cut += sum(each.cut for each in tokens)
        shown = self._task.show(run_filled(self._engine, self._reader.arrays(tokens)), top)
        yield from (Answer(text, one, None) for text, one in zip(texts, shown, strict=True))


def best_first(answers: Iterable[Answer]) -> list[Answer]:
    """Sort scores of pairs: the answers to each question by their score, the questions as they came."""
    first: dict[str, int] = {}  # where each question comes first

    def order(numbered: tuple[int, Answer]) -> tuple[int, float]:
        place, answer = numbered
        assert isinstance(answer.given, tuple), "these are texts"
        assert answer.shown, "which can all be read"
        return first.setdefault(answer.given[0], place), -float(answer.shown.fields["score"])

    return [answer for _, answer in sorted(enumerate(answers), key=order)]


def find_texts(places: Sequence[str], prepared: PreparedTexts) -> list[Text]:
    """Return the texts that are given: in files, in the lines of standard input for `-`, and as they stand."""
    found: list[Text] = []
    for place in places:
        file = Path(place) if len(place) < LONGEST_NAME else None
        if place == "-":
            found += [_one_input(line, prepared.together) for line in lines_of_standard_input()]
        elif file and file.suffix in SUFFIXES and file.is_file():
            found += _of_samples(file, prepared.together)
        else:
            found.append(_one_input(place, prepared.together))
    return found


def _one_input(text: str, together: int) -> Text:
    """Return a text, or the two that a tab divides if the model reads two as one input."""
    if not is_unicode(text):
        raise EnginewrightError(f"{text!r} is no text in UTF-8")
    if not text.strip():
        raise EnginewrightError("one of the texts is empty: leave it out")
    parts = tuple(text.split("\t")) if together > 1 else (text,)
    if len(parts) != together or not all(part.strip() for part in parts):
        raise EnginewrightError(
            f"the model reads {together} texts as one input, with a tab between them, and not {text!r}"
        )
    return parts


def _of_samples(file: Path, together: int) -> list[Text]:
    columns, rows = read_rows(file)
    used = TWO if TWO[0] in columns else ONE
    texts = [tuple(text_in(file, row, column) for column in used) for row in rows]
    if len(used) < together:
        return [_one_input(text[0], together) for text in texts]
    return list(texts) if len(used) == together else [(part,) for text in texts for part in text]
