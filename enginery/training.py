"""Training the default model, so that a fresh clone has real accuracy to lose without downloading anything."""

from collections.abc import Iterator

import torch
from torch import nn

from enginery.core.errors import EngineryError
from enginery.core.params import TrainingParams
from enginery.core.progress import progress
from enginery.samples import SampleSet

READ_AT_ONCE = 32


def train(model: nn.Module, samples: SampleSet, params: TrainingParams) -> None:
    """AdamW under a one-cycle schedule: a ResNet-18 learns the digits to about 99 % in four epochs."""
    model.to(memory_format=torch.channels_last)  # a third faster on a CPU
    labels = torch.from_numpy(samples.labels)
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
        images = torch.from_numpy(samples.read_at(indices.numpy())).contiguous(memory_format=torch.channels_last)
        loss = nn.functional.cross_entropy(model(images), labels[indices])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.to(memory_format=torch.contiguous_format).eval()


def fit_head(model: nn.Module, samples: SampleSet, params: TrainingParams) -> None:
    """Fit only BatchNorm's statistics and the last linear layer; the rest keeps its random weights.

    Random features are enough for a model that tells classes apart and whose activations have sane ranges, which
    quantization needs, at the price of two forward passes: a ResNet-50 at 224 would take an hour to train on a CPU.
    """
    head = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    features: list[torch.Tensor] = []
    head.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].detach()))
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # a plain average over all batches
        for train_mode in (True, False):
            model.train(train_mode)
            features.clear()
            total = -(-len(samples) // READ_AT_ONCE)
            name = "fitting, statistics" if train_mode else "fitting, features"
            for images in progress(samples.batches(READ_AT_ONCE), name, total):
                model(torch.from_numpy(images))
    _fit_linear(head, torch.cat(features), torch.from_numpy(samples.labels), params)


def _fit_linear(head: nn.Linear, features: torch.Tensor, labels: torch.Tensor, params: TrainingParams) -> None:
    """Logistic regression on standardized features, written back as plain weights."""
    mean, std = features.mean(0), features.std(0) + 1e-6
    standard = (features - mean) / std
    linear = nn.Linear(head.in_features, head.out_features)
    optimizer = torch.optim.AdamW(linear.parameters(), lr=params.learning_rate, weight_decay=1e-2)
    for _ in range(params.epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(linear(standard), labels).backward()
        optimizer.step()
    with torch.no_grad():
        head.weight.copy_(linear.weight / std)
        head.bias.copy_(linear.bias - (linear.weight / std) @ mean)


def _shuffled(total: int, batch: int, epochs: int) -> Iterator[torch.Tensor]:
    """Whole batches only: BatchNorm cannot learn from a batch of one."""
    for _ in range(epochs):
        order = torch.randperm(total)
        for start in range(0, total - batch + 1, batch):
            yield order[start : start + batch]
