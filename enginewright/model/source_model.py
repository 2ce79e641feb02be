"""The source model: the user's model as it is, with which every graph and engine made of it is compared."""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx.inliner import inline_local_functions
from torch import nn

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.build import Profile
from enginewright.core.params.model import ModelParams
from enginewright.core.text import in_one_line
from enginewright.data.feeds import INPUT_TYPES, AxesOf, Feeds, HeldSizes, Outputs, Run
from enginewright.data.run_all import Running
from enginewright.data.sample_set import SampleSet
from enginewright.graph.as_written import open_as_written, run_graph
from enginewright.graph.onnx_file import check_at_each_size, check_graph, graph_inputs
from enginewright.model.checkpoint import WEIGHTS_RECORD, Weights, call_model, load_model
from enginewright.model.user_code import USER_ERRORS, describe_user_error, watched_files

STEADY_LIMIT = 1e-5  # threads that sum in another order change a result by about 1e-7
ALONE_LIMIT = 0.1  # far above what ranges that are found anew for each batch make of a quantized graph
GIVEN_GRAPH = "model.onnx"  # in the weights' folder, if the model came as an ONNX file
Misfit = Callable[[Mapping[str, tuple[int, ...]]], str | None]
Comparable = Callable[[Outputs, Outputs], tuple[Outputs, Outputs]]


def open_source_model(weights: Path, threads: int = 0) -> Run:
    """Return what runs the model, or the user's own ONNX file."""
    given = weights / GIVEN_GRAPH
    if not given.exists():
        return partial(_run_or_explain, partial(run_model, load_model(weights)), describe_user_error)
    try:
        session = open_as_written(given, threads)
    except Exception as error:  # ONNX Runtime's own exceptions share no base class
        if newest := re.search(r"official support for domain ai\.onnx is till opset (\d+)", str(error)):
            raise EnginewrightError(
                "model.source: the file is of a newer opset than ONNX Runtime executes: export it with opset "
                f"{newest[1]}, or convert it with onnx.version_converter"
            ) from None
        raise EnginewrightError(f"model.source: ONNX Runtime cannot open the file: {in_one_line(error)}") from None
    return partial(_run_or_explain, partial(run_graph, session), in_one_line)


@contextmanager
def running_model(weights: Path, threads: int) -> Iterator[Run]:
    if threads:
        torch.set_num_threads(threads)
    yield open_source_model(weights, threads)


def model_work(weights: Path) -> Running:
    """Return what runs the source model elsewhere. The user's files that it is made of go along."""
    if (weights / GIVEN_GRAPH).exists():
        return Running(weights, running_model)
    source = ModelParams(source=Weights.read(weights / WEIGHTS_RECORD).model, arguments={})
    return Running(weights, running_model, code=watched_files(source.source) if source.is_factory else {})


def run_model(model: nn.Module, feeds: Feeds) -> Outputs:
    """Run the model, and return floats of any size as float32; other types stay, and are refused later."""
    with torch.inference_mode():  # on copies of the samples, since a model's forward may write into its inputs
        outputs = call_model(model, {name: torch.tensor(array) for name, array in feeds.items()})
        return {name: (each.float() if each.is_floating_point() else each).numpy() for name, each in outputs.items()}


def require_runs(run: Run, feeds: Feeds, samples: SampleSet, misfit: Misfit) -> Outputs:
    """Run a few samples, so that a model that refuses them or returns outputs that do not fit its task fails before
    hours of work. `misfit` says how outputs of these shapes do not."""
    count = len(next(iter(feeds.values())))
    try:
        outputs = _run_or_explain(run, describe_user_error, feeds)
    except EnginewrightError as error:
        if (text := samples.manifest.text) and "index out of range" in str(error):
            hint = f"The tokenizer of samples.text knows {text.vocabulary} tokens, and texts have up to "
            hint += f"{text.how.longest}: one of its embeddings has fewer rows, as with the tokenizer of another model"
            raise EnginewrightError(f"{error}\n{hint}") from None

        def accepts(count: int) -> bool:
            with suppress(EnginewrightError):
                rows = _rows(feeds, slice(count), samples.manifest.values)
                return bool(_run_or_explain(run, describe_user_error, rows))
            return False

        if accepts(2) or not accepts(1):
            raise
        hint = "It takes a single sample: set min, opt and max of build.profile.batch to 1"
        raise EnginewrightError(f"{error}\n{hint}") from None
    for name, output in outputs.items():
        if output.ndim == 0 or len(output) != count or not np.issubdtype(output.dtype, np.floating):
            raise EnginewrightError(
                f"model.source: output {name} is {output.dtype} of shape {output.shape}; "
                f"it must be floats with the batch, here {count}, as first axis"
            )
        if not np.isfinite(output).all():
            raise EnginewrightError(
                f"model.source: output {name} holds NaN or infinity: are the weights whole, and are samples prepared "
                "as the model was trained on them?"
            )
    if why := misfit({name: each.shape for name, each in outputs.items()}):
        raise EnginewrightError(why)
    return outputs


def require_steady(run: Run, feeds: Sequence[Feeds], outputs: Sequence[Outputs]) -> None:
    """Refuse a model that returns random values, since no graph can agree with it."""
    again = [_run_or_explain(run, describe_user_error, each) for each in feeds]
    failure = "model.source: the model answers the same samples differently each time"
    check_at_each_size(outputs, again, STEADY_LIMIT, failure)


def require_same_alone(
    run: Run, feeds: Feeds, outputs: Outputs, comparable: Comparable, holding: Collection[str] = ()
) -> None:
    """Refuse a model that answers the last sample of a batch otherwise when it is alone, as a graph does that was
    exported from a batch of one with a loop or an index for it. Validation would blame the engine. The inputs `holding`
    sizes have no rows."""
    count = len(next(iter(feeds.values())))
    alone = _run_or_explain(run, describe_user_error, _rows(feeds, slice(-1, None), holding))
    check_graph(
        *comparable(alone, {name: array[-1:] for name, array in outputs.items()}),
        ALONE_LIMIT,
        f"model.source: the answer for a sample depends on the others of its batch, here of {count}, as of a file that "
        "was exported for batches of one: set min, opt and max of build.profile.batch, and benchmark.batches, to 1",
    )


def _rows(feeds: Feeds, rows: slice, holding: Collection[str]) -> Feeds:
    return {name: array if name in holding else array[rows] for name, array in feeds.items()}


def _run_or_explain(run: Run, explain: Callable[[BaseException], str], feeds: Feeds) -> Outputs:
    try:
        return run(feeds)
    except EnginewrightError:
        raise
    except USER_ERRORS as error:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in feeds.items())
        raise EnginewrightError(f"model.source: the model fails on {shapes}: {explain(error)}") from None


def adopt_graph(model: onnx.ModelProto, example: Feeds, axes_of: AxesOf, what: str) -> onnx.ModelProto:
    """Name the axes that vary as build.profile does: batch, height, width and the user's. Write functions out, which
    compilers do not know. Change nothing else. `axes_of` has those of the profile, by input. Another axis that the file
    leaves open gets its size in the samples."""
    if model.functions:
        model = inline_local_functions(model)
    inputs = graph_inputs(model.graph)
    names = [tensor.name for tensor in inputs]
    if sorted(names) != sorted(example):
        raise EnginewrightError(
            f"{what} takes {', '.join(names)}, and the samples give {', '.join(example)}: "
            "use the same names, for images by samples.input"
        )
    ours_of: defaultdict[str, set[str | int]] = defaultdict(set)  # our names or sizes for each name in the file
    for tensor in inputs:
        _require_fitting(tensor, example[tensor.name], what)
        for number, size in enumerate(tensor.type.tensor_type.shape.dim):
            if not size.HasField("dim_value") and not isinstance(axes_of[tensor.name], HeldSizes):
                ours = axes_of[tensor.name].get(number, example[tensor.name].shape[number])
                ours_of[size.dim_param].add(ours)
                _set_size(size, ours)
    ours_alone = {axis for axes in axes_of.values() for axis in axes.values()}
    for tensor in (*model.graph.output, *model.graph.value_info):
        for size in tensor.type.tensor_type.shape.dim:
            if size.dim_param:
                meanings = ours_of[size.dim_param]
                if len(meanings) == 1:
                    _set_size(size, *meanings)
                elif meanings or size.dim_param in ours_alone:  # it has several, or is ours for something else
                    size.ClearField("dim_param")
    return model


def settle_sizes(model: onnx.ModelProto, run: Run, samples: Iterable[Feeds], profile: Profile) -> None:
    """Give each size of an output that only a run shows, since exporters leave a name of their own for it, the one that
    it has for all `samples`. Where inputs vary in more than their batch, such sizes may vary with them."""
    open_sizes = [
        (tensor.name, axis, size)
        for tensor in model.graph.output
        for axis, size in enumerate(tensor.type.tensor_type.shape.dim)
        if axis and not size.HasField("dim_value")
    ]
    if profile.resizes or not open_sizes:
        return
    try:
        outputs = [run(feeds) for feeds in samples]
    except EnginewrightError:
        return  # what does not fit is refused next, by name
    for name, axis, size in open_sizes:
        found = {each[name].shape[axis] for each in outputs}
        if len(found) == 1:
            _set_size(size, *found)


def _require_fitting(tensor: onnx.ValueInfoProto, sample: NDArray[Any], what: str) -> None:
    """Refuse samples of another shape or type than the input, except for the batch, which the profile chooses."""
    shape = sample.shape
    sizes = [size.dim_value or size.dim_param or "?" for size in tensor.type.tensor_type.shape.dim]
    fits = [isinstance(size, str) or size == given for size, given in zip(sizes[1:], shape[1:], strict=False)]
    if len(sizes) != len(shape) or not all(fits):
        raise EnginewrightError(
            f"{what}: input {tensor.name} is ({', '.join(map(str, sizes))}), and the samples give {shape}: "
            "samples.preprocessing, or the arrays, must be as the model takes them"
        )
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.type.tensor_type.elem_type)
    if dtype != sample.dtype:
        otherwise = ", or bring arrays as samples.source" if dtype.name in INPUT_TYPES else ""
        raise EnginewrightError(
            f"{what}: input {tensor.name} is {dtype}, and the samples give {sample.dtype}: images are always float32, "
            f"and arrays {', '.join(INPUT_TYPES)}; export the model with a cast of its own{otherwise}"
        )


def _set_size(size: onnx.TensorShapeProto.Dimension, ours: str | int) -> None:
    setattr(size, "dim_param" if isinstance(ours, str) else "dim_value", ours)
