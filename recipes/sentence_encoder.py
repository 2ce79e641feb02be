"""Make what the recipe sentence_encoder.yaml needs: pairs of sentences with scores, a tokenizer, and an encoder.

    .venv/bin/python recipes/sentence_encoder.py     # some minutes on two cores
    make repro RECIPE=recipes/sentence_encoder.yaml

The sentences are those of docstrings that come with Python and with the packages of this project. The encoder learns
which two sentences are of one docstring. A pair's score is how near its sentences stand to each other: 3 in one
docstring, 2 in one module, 1 in one package, 0 in different ones. The modules of the pairs are not those that were
learned from.
"""

import argparse
import ast
import csv
import importlib.util
import re
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

PACKAGES = ("numpy", "pandas", "scipy", "sklearn", "matplotlib", "torch", "jinja2", "networkx", "PIL", "pydantic")
WORDS, LONGEST, WIDTH, HEADS, LAYERS = 8000, 64, 128, 4, 4
PAIRS = 2000
FEWEST, MOST = 5, 60  # words of a sentence


class Docstring(NamedTuple):
    package: str
    module: str
    sentences: tuple[str, ...]


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], attn_mask=mask)
        x = self.norms[0](x + self.out(seen.transpose(1, 2).flatten(2)))
        result: torch.Tensor = self.norms[1](x + self.down(nn.functional.gelu(self.up(x))))
        return result


class Encoder(nn.Module):
    """A small BERT, whose mean over the tokens of a text, at length 1, is the text's vector."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.norm, self.layers = nn.LayerNorm(WIDTH), nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.words(input_ids) + self.places.weight[: input_ids.shape[1]])
        seen = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, seen)
        counted = attention_mask.unsqueeze(-1).float()
        return nn.functional.normalize((x * counted).sum(1) / counted.sum(1), dim=-1)


def docstrings() -> Iterator[Docstring]:
    """Yield docstrings of two sentences or more, read from the source without running it."""
    places = {"python": Path(sysconfig.get_path("stdlib"))}
    for package in PACKAGES:
        if (found := importlib.util.find_spec(package)) and found.origin:
            places[package] = Path(found.origin).parent
    for package, folder in places.items():
        for file in sorted(folder.rglob("*.py")):
            inside = file.relative_to(folder)
            if not any("test" in part or part == "site-packages" for part in inside.parts):
                yield from _docstrings_of(file, package, inside.with_suffix("").as_posix())


def _docstrings_of(file: Path, package: str, module: str) -> Iterator[Docstring]:
    try:
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    except (SyntaxError, ValueError):
        return
    for node in nodes:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            plain = re.split(
                r"\n\s*(?:-{3,}|>>>|\.\. |:param|Parameters|Args:|Returns:)", ast.get_docstring(node) or ""
            )[0]
            parts = re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(plain.split()))
            good = tuple(dict.fromkeys(part for part in parts if FEWEST <= len(part.split()) <= MOST))
            if len(good) > 1:
                yield Docstring(package, f"{package}/{module}", good)


def pairs_of(known: list[Docstring], rng: np.random.Generator) -> list[tuple[str, str, int]]:
    """Return as many pairs of each score."""
    by_module, by_package = defaultdict(list), defaultdict(list)
    for one in known:
        by_module[one.module].append(one)
        by_package[one.package].append(one)
    found: set[tuple[str, str, int]] = set()
    for score in range(4):
        while len(found) < (score + 1) * PAIRS // 4:
            one = known[rng.integers(len(known))]
            among = (known, by_package[one.package], by_module[one.module], [one])[score]
            other = among[rng.integers(len(among))]
            nearness = (one.package == other.package) + (one.module == other.module) + (one is other)
            first, second = (each.sentences[rng.integers(len(each.sentences))] for each in (one, other))
            if nearness == score and first != second:
                found.add((first, second, score))
    return sorted(found)


def train_tokenizer(texts: list[str], file: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=WORDS, special_tokens=special, show_progress=False)
    )
    numbered = [(token, tokenizer.token_to_id(token)) for token in special[2:]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=numbered
    )
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(file))


def train(known: list[Docstring], tokenizer: Path, steps: int, batch: int = 96) -> nn.Module:
    """Train so that of all sentences in a batch the one of the same docstring is the nearest."""
    from enginewright.core.params.samples import TextPreprocessing
    from enginewright.data.texts import TextReader

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    model, reader = Encoder().train(), TextReader(tokenizer, TextPreprocessing(tokenizer="", longest=LONGEST))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps)

    def vectors(texts: list[str]) -> torch.Tensor:
        arrays = reader.arrays(reader.tokens([(text,) for text in texts]))
        result: torch.Tensor = model(**{name: torch.from_numpy(array) for name, array in arrays.items()})
        return result

    losses = []
    for step in range(steps):
        few = [known[place] for place in rng.integers(0, len(known), batch)]
        chosen = [rng.permutation(len(one.sentences))[:2] for one in few]
        first, second = ([one.sentences[two[k]] for one, two in zip(few, chosen, strict=True)] for k in (0, 1))
        cosines = vectors(first) @ vectors(second).T / 0.07
        loss = nn.functional.cross_entropy(cosines, torch.arange(batch)) + nn.functional.cross_entropy(
            cosines.T, torch.arange(batch)
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item() / 2)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {steps}: loss {np.mean(losses[-50:]):.3f}", flush=True)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    known = list(docstrings())
    modules = sorted({one.module for one in known})
    np.random.default_rng(0).shuffle(modules)
    kept = set(modules[: len(modules) // 4])
    learned, judged = ([one for one in known if (one.module in kept) == aside] for aside in (False, True))
    print(f"{len(learned)} docstrings to learn from, {len(judged)} for pairs", flush=True)
    for folder in ("data/texts", "data/weights"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer = Path("data/texts/docstrings.json")
    train_tokenizer([sentence for one in learned for sentence in one.sentences], tokenizer)
    with Path("data/texts/docstrings.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text_a", "text_b", "score"])
        rows.writerows(pairs_of(judged, np.random.default_rng(0)))
    torch.save(train(learned, tokenizer, options.steps).state_dict(), "data/weights/docstrings.pt")


if __name__ == "__main__":
    main()
