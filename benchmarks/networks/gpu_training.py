"""Train a classifier for the zoo on a GPU, for hundreds of epochs in a minute or two.

Networks with many layers wait for the CPU that starts their kernels, so one step is recorded as a CUDA graph and
replayed. Images are shifted, turned and scaled at random, and labels smoothed, as published weights were trained.
"""

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

from enginewright.model.weights import average_statistics_anew, batch_norms

BATCH = 64
SMOOTHING = 0.1
LONGEST_GRADIENT = 1.0


def train_on_gpu(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int, rate: float) -> None:
    """Train the model in place, and leave it on the CPU.

    The last quarter of the epochs holds BatchNorm's statistics, so that the network learns in the form in which it is
    deployed. Without that, EfficientNet-B5 answered 99 % right, but one image with numbers 19 times the median's.
    """
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    model.cuda().to(memory_format=torch.channels_last)
    images, labels = images.cuda().to(memory_format=torch.channels_last), labels.cuda()
    norms = batch_norms(model)
    held = epochs // 4 if norms else 0
    take_steps(model, images, labels, epochs - held, rate)
    if norms:
        fit_statistics(model, images)
        take_steps(model, images, labels, held, rate / 4, norms)
    model.cpu().to(memory_format=torch.contiguous_format).eval()


def take_steps(
    model: nn.Module,
    images: torch.Tensor,
    labels: torch.Tensor,
    epochs: int,
    rate: float,
    held: Iterable[nn.Module] = (),
) -> None:
    """Train all parameters; the modules `held` keep their statistics."""
    model.train()
    model.training = False  # not the whole: GoogLeNet and Inception would add auxiliary outputs
    for module in held:
        module.eval()
    step, now, given, wanted = recorded_step(model, images[:BATCH].clone(), labels[:BATCH].clone(), rate)
    batches = shuffled(len(images), epochs, images.device)
    for number, few in enumerate(batches):
        now.fill_(rate * one_cycle(number / len(batches)))
        given.copy_(moved(images[few]))
        wanted.copy_(labels[few])
        step()
    torch.cuda.synchronize()


def fit_statistics(model: nn.Module, images: torch.Tensor) -> None:
    """Average BatchNorm's statistics over all images as they are, since some models average slowly."""
    average_statistics_anew(model)
    with torch.no_grad():
        for few in images.split(BATCH):
            model(few)


def recorded_step(
    model: nn.Module, given: torch.Tensor, wanted: torch.Tensor, rate: float
) -> tuple[Callable[[], None], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return what makes one step, and its rate, images and labels, which are written into."""
    now = torch.tensor(rate * one_cycle(0.0), device=given.device)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=now, weight_decay=0.05, capturable=True)
    loss_of = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(model(given).float(), wanted)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, LONGEST_GRADIENT, foreach=True)
        optimizer.step()

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        step()
    return graph.replay, now, given, wanted


def one_cycle(part: float) -> float:
    """Return the share of the rate: up over the first tenth, then down by a cosine."""
    warm = 0.1
    return part / warm + 0.01 if part < warm else 0.5 * (1 + math.cos(math.pi * (part - warm) / (1 - warm)))


def moved(images: torch.Tensor) -> torch.Tensor:
    """Shift by up to an eighth, turn by up to 12 degrees, and scale by up to an eighth, each image in its own way."""
    count, device = len(images), images.device
    turn = (torch.rand(count, device=device) - 0.5) * math.radians(24)
    scale = 1 + (torch.rand(count, device=device) - 0.5) / 4
    matrix = torch.zeros(count, 2, 3, device=device)
    matrix[:, 0, 0] = matrix[:, 1, 1] = scale * turn.cos()
    matrix[:, 0, 1], matrix[:, 1, 0] = -scale * turn.sin(), scale * turn.sin()
    matrix[:, :, 2] = (torch.rand(count, 2, device=device) - 0.5) / 2
    grid = nn.functional.affine_grid(matrix, list(images.shape), align_corners=False)
    return nn.functional.grid_sample(images, grid, padding_mode="border", align_corners=False)


def shuffled(count: int, epochs: int, device: torch.device) -> list[torch.Tensor]:
    """Return the indices of all batches, whole ones only."""
    return [
        few for _ in range(epochs) for few in torch.randperm(count, device=device)[: count - count % BATCH].split(BATCH)
    ]
