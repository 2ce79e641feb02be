"""Small networks of families that torchvision has only large ones of, for promises.py."""

from collections.abc import Sequence

import torch
from torch import nn

CLASSES = 10


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = input + self.inner(input)
        return result


class Swapped(nn.Module):
    """Layers along another axis than the last one."""

    def __init__(self, axis: int, *layers: nn.Module) -> None:
        super().__init__()
        self.axis, self.inner = axis, nn.Sequential(*layers)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.inner(input.transpose(self.axis, -1)).transpose(self.axis, -1)
        return result


class Branches(nn.Module):
    """Convolutions that see further and further, one beside the other."""

    def __init__(self, width: int, steps: Sequence[int]) -> None:
        super().__init__()
        self.all = nn.ModuleList(nn.Conv2d(width, width // len(steps), 3, 1, step, step) for step in steps)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(torch.cat([each(input) for each in self.all], 1)).relu()
        return result


class Gates(nn.Module):
    """Rows of an image, one after the other, as a recurrent network reads them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cells = nn.GRU(width, width, batch_first=True)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.cells(input.mean(3).transpose(1, 2))[0][:, -1]
        return result


def classifier(*layers: nn.Module, width: int) -> nn.Module:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def groupnorm() -> nn.Module:
    """GroupNorm and SiLU, as in diffusion's networks."""

    def layer(before: int, after: int, stride: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, stride, 1), nn.GroupNorm(8, after), nn.SiLU()]

    parts = [Residual(*layer(width, width, 1)) for width in (32, 64)]
    return classifier(*layer(3, 32, 2), parts[0], *layer(32, 64, 2), parts[1], *layer(64, 64, 2), width=64)


def convnext() -> nn.Module:
    def block(width: int) -> nn.Module:
        wide = (nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        return Residual(nn.Conv2d(width, width, 7, 1, 3, groups=width), Swapped(1, *wide))

    down = nn.Conv2d(32, 64, 2, 2)
    return classifier(nn.Conv2d(3, 32, 4, 4), block(32), block(32), down, block(64), block(64), width=64)


def mixer() -> nn.Module:
    places, width = 64, 64

    def block() -> list[nn.Module]:
        among = Swapped(1, nn.Linear(places, 2 * places), nn.GELU(), nn.Linear(2 * places, places))
        within = (nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        return [Residual(nn.LayerNorm(width), among), Residual(nn.LayerNorm(width), *within)]

    patches = (nn.Conv2d(3, width, 8, 8), nn.Flatten(2), Swapped(1, *block(), *block(), nn.LayerNorm(width)))
    return nn.Sequential(*patches, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def branches() -> nn.Module:
    first = (nn.Conv2d(3, 48, 3, 2, 1), nn.BatchNorm2d(48), nn.LeakyReLU(0.1))
    return classifier(*first, Branches(48, (1, 2, 3)), nn.MaxPool2d(2), Branches(48, (1, 3, 5)), width=48)


def rows() -> nn.Module:
    first = (nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.Hardswish(), nn.Conv2d(32, 64, 3, 2, 1), nn.ELU())
    return nn.Sequential(*first, Gates(64), nn.Linear(64, CLASSES))
