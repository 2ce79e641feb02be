import numpy as np
import pytest
import torch
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.model import TrainingParams
from enginewright.model.weights import last_layer, train, train_all_layers, usable_device


class WithAuxiliaryOutput(nn.Module):
    """A model like GoogLeNet and Inception, which returns more than logits in training mode."""

    def __init__(self, head):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.5))
        self.head = head

    def forward(self, images):
        features = self.body(images)
        logits = self.head(features if isinstance(self.head, nn.Conv2d) else features.flatten(1))
        logits = logits.mean((2, 3)) if logits.ndim == 4 else logits
        return (logits, logits) if self.training else logits


@pytest.fixture(params=[lambda: nn.Linear(32 * 36, 16), lambda: nn.Conv2d(32, 16, 3)], ids=["linear", "convolution"])
def model(request):
    torch.manual_seed(0)
    return WithAuxiliaryOutput(request.param())


def params(epochs, size=8):
    return TrainingParams(size=size, epochs=epochs, batch=7, learning_rate=0.01, seed=0, device="cpu")


def state(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def changed(before, after):
    return {name for name, value in after.items() if not torch.equal(before[name], value)}


def images(samples):
    return torch.from_numpy(samples.cycled(len(samples))["input"])


def learnt(model, samples):
    with torch.inference_mode():
        return float(np.mean(model(images(samples)).argmax(1).numpy() == samples.labels))


STATISTICS = {"body.1.running_mean", "body.1.running_var", "body.1.num_batches_tracked"}
LAST = {"head.weight", "head.bias"}


def test_statistics_of_rows_are_fitted_as_those_of_maps(samples):
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(192), nn.Linear(192, 16))
    before = state(model)
    train(model, samples, params(epochs=0))
    assert {"1.running_mean", "1.running_var"} <= changed(before, state(model))


def test_without_epochs_only_the_statistics_and_the_last_layer_are_fitted(model, samples):
    before = state(model)
    train(model, samples, params(epochs=0))
    assert changed(before, state(model)) == STATISTICS | LAST
    assert learnt(model, samples) > 0.9


def test_statistics_are_those_of_the_samples(model, samples):
    train(model, samples, params(epochs=0))
    convolved = model.body[0](images(samples))
    assert torch.allclose(model.body[1].running_mean, convolved.mean((0, 2, 3)), atol=1e-5)
    assert torch.allclose(model.body[1].running_var, convolved.var((0, 2, 3)), rtol=1e-4)


@pytest.mark.parametrize("size", [8, 6])
def test_a_network_with_auxiliary_outputs_is_trained_by_its_logits(samples, size):
    torch.manual_seed(0)
    model = WithAuxiliaryOutput(nn.Conv2d(32, 16, 3))  # takes any size
    before = state(model)
    train(model, samples, params(epochs=2, size=size))
    assert changed(before, state(model)) == before.keys()
    assert not any(module.training for module in model.modules())


def test_dropout_is_on_in_training(model, samples):
    seen = set()
    model.body[3].register_forward_hook(lambda module, _, output: seen.add(module.training))
    train_all_layers(model, samples, params(epochs=1))  # afterwards the last layer is fitted, without dropout
    assert seen == {True}


def test_the_last_layer_is_the_one_that_returns_the_logits(model):
    assert last_layer(model) is model.head


def test_a_model_without_a_last_layer_is_refused(samples):
    with pytest.raises(EnginewrightError, match="has no linear layer or convolution"):
        train(nn.Sequential(nn.BatchNorm2d(3), nn.Flatten()), samples, params(epochs=0))


def test_a_missing_gpu_is_one_sentence():
    if torch.cuda.is_available():
        assert usable_device("cuda").type == "cuda"
    else:
        with pytest.raises(EnginewrightError, match=r"weights\.training\.device: PyTorch cannot use cuda here: \w"):
            usable_device("cuda")
    assert usable_device("cpu").type == "cpu"
