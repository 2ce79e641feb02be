"""What more than one report says."""

from enginery.core.records import Machine

NO_LABELS = "not measured (no labels)"


def percent(share: float | None) -> str:
    """Accuracy is left out where images have no labels: it is not zero."""
    return "-" if share is None else f"{share:.2%}"


def accuracy_beside(ours: float | None, theirs: float | None) -> str:
    if ours is None or theirs is None:
        return f"accuracy {NO_LABELS}"
    return f"accuracy {ours:.2%} where PyTorch has {theirs:.2%}"


def device(machine: Machine) -> str:
    if machine.device == "cpu":
        return f"{machine.device_name} ({machine.cores} cores)"
    return (
        f"{machine.device_name} (compute capability {machine.capability}, driver {machine.driver}, CUDA {machine.cuda})"
    )
