"""Make what the recipes segmenter.yaml and detector.yaml need: scenes of handwritten digits, and a network trained on
others like them.

    .venv/bin/python recipes/scenes.py              # with masks; some minutes on two cores
    make repro RECIPE=recipes/segmenter.yaml
    .venv/bin/python recipes/scenes.py detector     # with boxes
    make repro RECIPE=recipes/detector.yaml

Everything follows from a seed. The scenes that are stored in data/images are for the pipeline, which draws calibration
and validation from them; the network learns from new ones. Digits of the one are not in the other.
"""

import argparse
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torchvision
from numpy.typing import NDArray
from PIL import Image
from sklearn.datasets import load_digits
from torch import nn
from torchvision.models.detection.transform import GeneralizedRCNNTransform

CLASSES = 11  # background, and the digits 0 to 9
NAMES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
FOR_PIPELINE = 768
Digits = tuple[NDArray[np.float64], NDArray[np.int64]]  # pictures of 8 by 8, and which digit each is


class Kind(NamedTuple):
    """A recipe takes a network, and scenes of so many pixels with so many digits at most."""

    model: str
    size: int
    most: int
    apart: bool  # whether digits may not cover each other
    scenes: int  # to learn from
    epochs: int
    has_boxes: bool = False


SEGMENTER = Kind("lraspp_mobilenet_v3_large", size=64, most=3, apart=False, scenes=1600, epochs=12)
DETECTOR = Kind("ssdlite320_mobilenet_v3_large", size=128, most=4, apart=True, scenes=1600, epochs=12, has_boxes=True)


class Scenes(NamedTuple):
    """Images; for each pixel its digit plus 1, or 0; and for each image rows of digit, left, top, right, bottom."""

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    boxes: list[NDArray[np.int64]]


def make_scenes(digits: Digits, count: int, kind: Kind, seed: int) -> Scenes:
    """Return scenes of coloured digits on a coloured, noisy ground."""
    rng, size = np.random.default_rng(seed), kind.size
    images, masks = np.empty((count, size, size, 3), np.uint8), np.zeros((count, size, size), np.uint8)
    boxes = []
    for image, mask in zip(images, masks, strict=True):
        picture = rng.uniform(0, 120, 3) + rng.normal(0, 12, (size, size, 1)) + np.zeros((size, size, 3))
        found = []
        for _ in range(rng.integers(1, kind.most + 1)):
            which, factor = rng.integers(len(digits[0])), rng.integers(3, 6)
            shape = np.kron(digits[0][which] / 16, np.ones((factor, factor)))
            top, left = rng.integers(0, size - len(shape) + 1, 2)
            place = np.s_[top : top + len(shape), left : left + len(shape)]
            ink = shape > 0.4
            if kind.apart and mask[place].any():
                continue
            inside = shape[..., np.newaxis]
            picture[place] = (1 - inside) * picture[place] + inside * rng.uniform(135, 255, 3)
            mask[place] = np.where(ink, digits[1][which] + 1, mask[place])
            rows, columns = (np.flatnonzero(ink.any(axis=axis)) for axis in (1, 0))
            found.append(
                [digits[1][which], left + columns[0], top + rows[0], left + columns[-1] + 1, top + rows[-1] + 1]
            )
        image[:] = picture.clip(0, 255).round()
        boxes.append(np.array(found, np.int64))
    return Scenes(images, masks, boxes)


def make_both(kind: Kind) -> tuple[Scenes, Scenes]:
    """Return scenes for the pipeline, and others to learn from, of other digits."""
    known = load_digits()
    seen = np.arange(len(known.images)) % 4 > 0
    made = make_scenes((known.images[~seen], known.target[~seen]), FOR_PIPELINE, kind, seed=0)
    return made, make_scenes((known.images[seen], known.target[seen]), kind.scenes, kind, seed=1)


def write(scenes: Scenes, kind: Kind, place: Path) -> None:
    """Write scenes as a folder with boxes, or as a file with masks."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind.has_boxes:
        write_boxes(scenes, place)
    else:
        np.savez_compressed(place, images=scenes.images, masks=scenes.masks)


def loss_of_masks(model: nn.Module, pixels: torch.Tensor, scenes: Scenes, few: list[int]) -> torch.Tensor:
    return nn.functional.cross_entropy(
        model(pixels)["out"], torch.from_numpy(scenes.masks[few]).to(pixels.device).long()
    )


def loss_of_boxes(model: nn.Module, pixels: torch.Tensor, scenes: Scenes, few: list[int]) -> torch.Tensor:
    """Return the sum of what a detector's forward returns while it trains."""
    targets = []
    for index in few:
        rows = torch.from_numpy(scenes.boxes[index]).to(pixels.device)
        targets.append({"boxes": rows[:, 1:].float(), "labels": rows[:, 0] + 1})  # 0 is the background
    losses: torch.Tensor = sum(model(list(pixels), targets).values())
    return losses


def train(scenes: Scenes, kind: Kind, epochs: int, batch: int = 16, device: str = "cpu") -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = torchvision.models.get_model(
        kind.model, weights=None, weights_backbone=None, num_classes=CLASSES
    ).train()
    loss_of = loss_of_boxes if kind.has_boxes else loss_of_masks
    if kind.has_boxes:  # at the scenes' size, and with pixels as they come
        same = (kind.size, kind.size)
        model.transform = GeneralizedRCNNTransform(*same, [0.0] * 3, [1.0] * 3, size_divisible=1, fixed_size=same)
    model.to(device)
    images = torch.from_numpy(scenes.images)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, weight_decay=1e-4)
    steps = epochs * (len(images) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.003, total_steps=max(1, steps))
    for epoch in range(epochs):
        losses = []
        for few in torch.randperm(len(images)).split(batch)[: len(images) // batch]:
            pixels = (
                images[few].permute(0, 3, 1, 2).to(device).float() / 127.5 - 1
            )  # as the recipe's preprocessing has it
            loss = loss_of(model, pixels, scenes, few.tolist())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1} of {epochs}: loss {np.mean(losses):.3f}", flush=True)
    return model.cpu().eval()


def write_boxes(scenes: Scenes, folder: Path) -> None:
    """Write the images, and annotations as COCO has them."""
    folder.mkdir(parents=True, exist_ok=True)
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number, (pixels, rows) in enumerate(zip(scenes.images, scenes.boxes, strict=True)):
        name = f"{number:04d}.jpg"
        Image.fromarray(pixels).save(folder / name, quality=95)
        images.append({"id": number, "file_name": name, "width": pixels.shape[1], "height": pixels.shape[0]})
        for digit, left, top, right, bottom in rows.tolist():
            box = [left, top, right - left, bottom - top]
            identity = len(annotations) + 1
            annotations.append({"id": identity, "image_id": number, "category_id": digit, "bbox": box, "iscrowd": 0})
    categories = [{"id": digit, "name": name} for digit, name in enumerate(NAMES)]
    document = {"images": images, "annotations": annotations, "categories": categories}
    (folder / "annotations.json").write_text(json.dumps(document, indent=0) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", choices=("segmenter", "detector"), default="segmenter")
    parser.add_argument("--scenes", type=int, help="scenes to train on")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="to train on")
    options = parser.parse_args()
    kind = SEGMENTER if options.recipe == "segmenter" else DETECTOR
    made, lessons = make_both(kind._replace(scenes=options.scenes or kind.scenes))
    trained = train(lessons, kind, options.epochs or kind.epochs, device=options.device)
    name, weights = "digit-boxes" if kind.has_boxes else "scenes", Path("data/weights")
    weights.mkdir(parents=True, exist_ok=True)
    write(made, kind, Path("data/images") / (name if kind.has_boxes else f"{name}.npz"))
    torch.save(trained.state_dict(), weights / f"{name}.pt")


if __name__ == "__main__":
    main()
