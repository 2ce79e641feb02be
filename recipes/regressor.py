"""Make what the recipe regressor.yaml needs: how diabetes went on in 442 patients, and a network trained on half.

    .venv/bin/python recipes/regressor.py       # seconds
    make repro RECIPE=recipes/regressor.yaml

The data come with scikit-learn: ten measurements of a patient, and how far the disease was a year later.
"""

from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from torch import nn

WIDTH = 64


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(10, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


def train(inputs: torch.Tensor, targets: torch.Tensor, steps: int = 60) -> nn.Module:
    """Train with the targets brought to mean 0 and spread 1, and bring the last layer back to their own scale."""
    torch.manual_seed(0)
    model, middle, spread = network(), targets.mean(), targets.std()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=0.3)
    for _ in range(steps):
        loss = nn.functional.mse_loss(model(inputs), (targets - middle) / spread)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    last = model.get_submodule("4")
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight *= spread
        last.bias.copy_(last.bias * spread + middle)
    return model.eval()


def main() -> None:
    known = load_diabetes()
    inputs, targets = (known.data * 20).astype(np.float32), known.target.astype(np.float32)[:, np.newaxis]
    seen = np.random.default_rng(0).random(len(inputs)) < 0.5
    model = train(torch.from_numpy(inputs[seen]), torch.from_numpy(targets[seen]))
    for folder in ("data/images", "data/weights"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    np.savez("data/images/diabetes.npz", input=inputs[~seen], targets=targets[~seen])
    torch.save(model.state_dict(), "data/weights/diabetes.pt")


if __name__ == "__main__":
    main()
