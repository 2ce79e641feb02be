"""Two transformers that a CPU trains in minutes: a ViT for images, and an encoder that reads text under a mask.

    python benchmarks/networks/small_transformers.py data/images/text.npz data/weights/encoder.pt  # both are made

The texts are pieces of modules of Python's standard library; their class is the module that they are of. A word's
number is a hash of it.
"""

import collections
import email.message
import http.client
import importlib
import inspect
import logging
import re
import sys
import tarfile
import typing
import unittest.case
import zlib

import numpy as np
import torch
from torch import nn

LENGTH, SHORTEST = 32, 16  # of a piece of text, in words
WORDS = 4096
PIECES, KEPT = 300, 800  # of each module; of all for calibration and validation
EPOCHS, BATCH, LEARNING_RATE = 8, 32, 1e-3


class Layer(nn.Module):
    """Attention and two linear layers; normalized before each, as in a ViT, or after, as in BERT."""

    def __init__(self, width: int, heads: int, first: bool) -> None:
        super().__init__()
        self.heads, self.first = heads, first
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        _, length, width = x.shape
        each = width // self.heads
        q, k, v = (one(x).reshape(-1, length, self.heads, each).transpose(1, 2) for one in (self.q, self.k, self.v))
        scores = q @ k.transpose(2, 3) * each**-0.5
        seen = (scores if mask is None else scores + mask).softmax(-1) @ v
        result: torch.Tensor = self.out(seen.transpose(1, 2).reshape(-1, length, width))
        return result

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(nn.functional.gelu(self.up(x)))
        return result

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        before, after = self.norms
        if self.first:
            x = x + self.attend(before(x), mask)
            return x + self.feed(after(x))
        x = before(x + self.attend(x, mask))
        result: torch.Tensor = after(x + self.feed(x))
        return result


class Encoder(nn.Module):
    def __init__(self, width: int = 128, heads: int = 4, layers: int = 4, classes: int = 10) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads, first=False) for _ in range(layers))
        self.classify = nn.Linear(width, classes)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = (1 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        x = self.norm(self.words(tokens) + self.places)
        for layer in self.layers:
            x = layer(x, hidden)
        result: torch.Tensor = self.classify(x[:, 0])
        return result


class ViT(nn.Module):
    def __init__(
        self, width: int = 192, heads: int = 6, layers: int = 4, size: int = 64, patch: int = 8, classes: int = 10
    ) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads, first=True) for _ in range(layers))
        self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # as the pipeline calls the model's input
        x = self.cut(input).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.classify(self.norm(x)[:, 0])
        return result


def vit() -> nn.Module:
    torch.manual_seed(0)
    return ViT()


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return Encoder()


def texts() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, masks and labels, shuffled."""
    decimal, events = importlib.import_module("_pydecimal"), importlib.import_module("asyncio.base_events")
    parser = importlib.import_module("argparse")
    modules = (
        typing, events, parser, collections, logging, unittest.case, decimal, email.message, http.client, tarfile,
    )  # fmt: skip
    random = np.random.default_rng(0)
    tokens = np.zeros((len(modules) * PIECES, LENGTH), np.int64)
    mask = np.zeros_like(tokens)
    labels = np.arange(len(tokens)) // PIECES
    words = [re.findall(r"\w+|[^\w\s]", inspect.getsource(module)) for module in modules]
    numbers = [np.array([zlib.crc32(word.encode()) % WORDS for word in each]) for each in words]
    for piece, label in enumerate(labels):
        length = random.integers(SHORTEST, LENGTH + 1)
        start = random.integers(0, len(numbers[label]) - length)
        tokens[piece, :length] = numbers[label][start : start + length]
        mask[piece, :length] = 1
    order = random.permutation(len(tokens))
    return torch.tensor(tokens[order]), torch.tensor(mask[order]), torch.tensor(labels[order])


def train(model: nn.Module, lessons: tuple[torch.Tensor, ...], epochs: int, rate: float) -> None:
    """Teach the classes of all texts but those that are kept."""
    tokens, mask, labels = lessons
    optimizer = torch.optim.AdamW(model.parameters(), rate)
    for epoch in range(epochs):
        order = KEPT + torch.randperm(len(tokens) - KEPT, generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            loss = nn.functional.cross_entropy(model(tokens[batch], mask[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def main(data: str, weights: str, device: str = "cpu") -> None:
    lessons = tuple(each.to(device) for each in texts())
    model = encoder().to(device)
    train(model, lessons, EPOCHS, LEARNING_RATE)
    tokens, mask, labels = (each[:KEPT].cpu().numpy() for each in lessons)
    np.savez(data, tokens=tokens, mask=mask, labels=labels)
    torch.save(model.cpu().state_dict(), weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
