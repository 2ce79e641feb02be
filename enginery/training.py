"""Training the default model, so that a fresh clone has real accuracy to lose without downloading anything."""

from collections.abc import Iterator

import torch
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params import TrainingParams
from enginery.core.progress import progress
from enginery.feeds import Feeds
from enginery.samples import SampleSet

READ_AT_ONCE = 32
HEAD_STEPS = 200


def train(model: nn.Module, samples: SampleSet, params: TrainingParams) -> None:
    """AdamW under a one-cycle schedule: a ResNet-18 learns the digits to about 99 % in four epochs.

    Training on smaller images than the model will see is cheaper by the square. It leaves BatchNorm's statistics and
    the last layer off by the difference in scale, so these two are fitted once more at the full size.
    """
    model.to(memory_format=torch.channels_last)  # a third faster on a CPU
    labels = known_labels(samples)
    batches = len(samples) // params.batch
    if batches == 0:
        raise EngineryError(f"weights.training.batch is {params.batch}, but there are {len(samples)} training samples")
    optimizer = torch.optim.AdamW(model.parameters(), lr=params.learning_rate, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=params.learning_rate, total_steps=params.epochs * batches
    )
    model.train()
    steps = _shuffled(len(samples), params.batch, params.epochs)
    for indices in progress(steps, "training", params.epochs * batches):
        images = _shrunk(_only(samples.read_at(indices.numpy())), params.size)
        logits = model(images)
        if not isinstance(logits, torch.Tensor):  # GoogLeNet and Inception add auxiliary outputs in training
            raise EngineryError("weights.source: train: this model has several outputs in training; give a checkpoint")
        loss = nn.functional.cross_entropy(logits, labels[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    how = samples.manifest.preprocessing
    if how and params.size != min(how.crop):
        fit_to_size(model, samples)
    model.to(memory_format=torch.contiguous_format).eval()


def fit_to_size(model: nn.Module, samples: SampleSet) -> None:
    """BatchNorm's statistics, and the last linear layer, on the images as they are: two forward passes."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not linears:
        raise EngineryError("weights.training.size: this model has no linear layer to fit again; set size to crop")
    head = linears[-1]
    features: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    total = -(-len(samples) // READ_AT_ONCE)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()
                module.momentum = None  # a plain average over all batches
        for statistics in (True, False):
            model.train(statistics)
            features.clear()
            label = "fitting to size, statistics" if statistics else "fitting to size, features"
            for feeds in progress(samples.batches(READ_AT_ONCE), label, total):
                model(_only(feeds).contiguous(memory_format=torch.channels_last))
    hook.remove()
    _fit_linear(head, torch.cat(features), known_labels(samples))


def known_labels(samples: SampleSet) -> torch.Tensor:
    labels = samples.labels
    if labels is None:
        raise EngineryError("weights.source: train needs images with labels, and samples.source has none; give weights")
    return torch.from_numpy(labels)


def _only(feeds: Feeds) -> torch.Tensor:
    (images,) = feeds.values()
    return torch.from_numpy(images)


def _shrunk(images: torch.Tensor, size: int) -> torch.Tensor:
    height, width = images.shape[2:]
    shorter = min(height, width)
    if size != shorter:
        images = nn.functional.interpolate(
            images, size=(height * size // shorter, width * size // shorter), mode="area"
        )
    return images.contiguous(memory_format=torch.channels_last)


def _fit_linear(head: nn.Linear, features: torch.Tensor, labels: torch.Tensor) -> None:
    """Go on from the trained weights by full-batch logistic regression."""
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-2)
    for _ in range(HEAD_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(head(features), labels).backward()
        optimizer.step()


def _shuffled(total: int, batch: int, epochs: int) -> Iterator[torch.Tensor]:
    """Whole batches only: BatchNorm cannot learn from a batch of one."""
    for _ in range(epochs):
        order = torch.randperm(total)
        for start in range(0, total - batch + 1, batch):
            yield order[start : start + batch]
