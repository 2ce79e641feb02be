"""Make what the recipe segmenter.yaml needs: scenes of handwritten digits with masks, and a network trained on them.

    python3 recipes/scenes.py          # some minutes on two cores
    make repro RECIPE=recipes/segmenter.yaml

Everything follows from a seed. The scenes are new ones for training, and those of data/images/scenes.npz are for the
pipeline, which draws calibration and validation from them. Digits of the one are not in the other.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import nn

SIZE, CLASSES = 64, 11  # pixels; background, and the digits 0 to 9
MOST = 3  # digits in a scene
FOR_PIPELINE = 768
MODEL = "lraspp_mobilenet_v3_large"
Scenes = tuple[NDArray[np.uint8], NDArray[np.uint8]]


def make_scenes(digits: NDArray[np.float64], numbers: NDArray[np.int64], count: int, seed: int) -> Scenes:
    """Return scenes of coloured digits on a coloured, noisy ground, and for each pixel its digit plus 1, or 0."""
    rng = np.random.default_rng(seed)
    images = np.empty((count, SIZE, SIZE, 3), np.uint8)
    masks = np.zeros((count, SIZE, SIZE), np.uint8)
    for image, mask in zip(images, masks, strict=True):
        picture = rng.uniform(0, 120, 3) + rng.normal(0, 12, (SIZE, SIZE, 1)) + np.zeros((SIZE, SIZE, 3))
        for _ in range(rng.integers(1, MOST + 1)):
            which, factor = rng.integers(len(digits)), rng.integers(3, 6)
            shape = np.kron(digits[which] / 16, np.ones((factor, factor)))
            top, left = rng.integers(0, SIZE - len(shape) + 1, 2)
            place = np.s_[top : top + len(shape), left : left + len(shape)]
            inside = shape[..., np.newaxis]
            picture[place] = (1 - inside) * picture[place] + inside * rng.uniform(135, 255, 3)
            mask[place] = np.where(shape > 0.4, numbers[which] + 1, mask[place])
        image[:] = picture.clip(0, 255).round()
    return images, masks


def train(scenes: Scenes, epochs: int, batch: int = 16) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.get_model(
        MODEL, weights=None, weights_backbone=None, num_classes=CLASSES
    ).train()
    images, masks = (torch.from_numpy(array) for array in scenes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=1e-4)
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.003, total_steps=steps)
    for epoch in range(epochs):
        losses = []
        for few in torch.randperm(len(images)).split(batch)[: len(images) // batch]:
            pixels = images[few].permute(0, 3, 1, 2).float() / 127.5 - 1  # as the recipe's preprocessing has it
            loss = nn.functional.cross_entropy(model(pixels)["out"], masks[few].long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1} of {epochs}: loss {np.mean(losses):.3f}", flush=True)
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=1600, help="scenes to train on")
    parser.add_argument("--epochs", type=int, default=12)
    options = parser.parse_args()
    known = load_digits()
    seen = np.arange(len(known.images)) % 4 > 0
    made = make_scenes(known.images[~seen], known.target[~seen], FOR_PIPELINE, seed=0)
    trained = train(make_scenes(known.images[seen], known.target[seen], options.scenes, seed=1), options.epochs)
    for folder in ("data/images", "data/weights"):
        Path(folder).mkdir(parents=True, exist_ok=True)
    np.savez_compressed("data/images/scenes.npz", images=made[0], masks=made[1])
    torch.save(trained.state_dict(), "data/weights/scenes.pt")


if __name__ == "__main__":
    main()
