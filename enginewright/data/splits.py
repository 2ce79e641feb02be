"""Divide the images among training, calibration and validation, and write each split to disk."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations, islice
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from enginewright.core.cores import in_parallel
from enginewright.core.errors import EnginewrightError, bad_source
from enginewright.core.facts import CLASSIFICATION
from enginewright.core.files import new_folder, sha256
from enginewright.core.params.samples import Preprocessing, SamplesParams, TextPreprocessing
from enginewright.core.progress import progress
from enginewright.data.sample_set import (
    LENGTHS,
    MANIFEST,
    TOKENIZER,
    TRUTH,
    UNCROPPED,
    Manifest,
    PreparedTexts,
    Sample,
    input_file,
    start_npy_file,
)
from enginewright.data.sources import Source
from enginewright.data.sources.arrays import ImageArray, Tensors
from enginewright.data.sources.files import ImageFiles
from enginewright.data.sources.tables import Texts
from enginewright.data.sources.truth import Ranked, Truths
from enginewright.data.texts import TextReader, Tokens, padded_length

AT_ONCE = 1024  # texts
MOST_UNCROPPED, LARGEST_UNCROPPED = 64, 352  # images, and pixels of a shorter side


def split(total: int, params: SamplesParams, truths: Truths | None = None) -> dict[str, list[int]]:
    """Divide the samples at random. The calibration comes last: its size changes nothing in the other two. Answers to
    one question stay together, as their order is judged: only the last of a split may be in the next one, too."""
    asked = {"validation": params.validation, "training": params.training, "calibration": params.calibration}
    if sum(asked.values()) > total:
        counts = ", ".join(f"{name} {count}" for name, count in asked.items())
        raise bad_source(
            f"{params.source} has {total} samples, but params.yaml asks for {sum(asked.values())} ({counts})"
        )
    shuffled = np.random.default_rng(params.seed).permutation(total)
    if isinstance(truths, Ranked):
        places = np.unique(truths.questions[shuffled], return_index=True)[1]  # where each question comes first
        shuffled = shuffled[np.argsort(places[truths.questions[shuffled]], kind="stable")]
    order = iter(shuffled.tolist())
    return {name: list(islice(order, count)) for name, count in asked.items()}


def write_split(
    source: Source, indices: Sequence[int], params: SamplesParams, folder: Path, task: str = CLASSIFICATION
) -> Manifest:
    """Write a split to disk while it is decoded, so that memory does not grow with the number of images."""
    text = None
    with new_folder(folder) as unfinished:
        if isinstance(source, Texts):
            assert params.text, "which says that the source is one of texts"
            inputs, samples = params.text.inputs, source.samples(indices)
            text = _write_texts(source, indices, params.text, unfinished)
        elif isinstance(source, Tensors):
            inputs, samples = source.inputs, source.write(indices, unfinished)
        elif params.preprocessing:
            inputs, samples = (params.input,), _write_pixels(source, indices, params.preprocessing, unfinished)
        else:
            raise EnginewrightError(f"samples.preprocessing: {params.source} holds images, which need it")
        if isinstance(source, Texts | Tensors) and source.truths:
            with ExitStack() as opened:
                write = _truth_writer(unfinished, len(indices), opened)
                for index in indices:
                    write(source.truths.prepare(index, None, None))
        if twice := sorted(params.values.keys() & {*inputs}):
            raise EnginewrightError(f"samples.values: {twice[0]} is an input of samples.source already")
        manifest = Manifest(
            task=task,
            source=params.source,
            inputs=inputs,
            preprocessing=params.preprocessing,
            text=text,
            class_names=source.class_names,
            samples=tuple(samples),
            values=params.values,
        )
        manifest.write(unfinished / MANIFEST)
    return manifest


def _write_texts(source: Texts, indices: Sequence[int], how: TextPreprocessing, folder: Path) -> PreparedTexts:
    """Write the tokens of texts, all padded to the longest, their lengths, and the tokenizer itself."""
    shutil.copyfile(source.tokenizer, folder / TOKENIZER)
    reader = TextReader(folder / TOKENIZER, how)
    tokens = reader.tokens(source.texts(indices))
    lengths = np.array([len(each.ids) for each in tokens], np.int64)
    np.save(folder / LENGTHS, lengths)
    longest = int(lengths.max(initial=1))
    filler = Tokens([0] * longest, [], False)  # to whose length the others are padded
    shape, dtype = (len(tokens), padded_length(longest, how)), np.dtype(how.dtype)
    with ExitStack() as opened:
        paths = [folder / input_file(number) for number in range(len(how.inputs))]
        files = [opened.enter_context(start_npy_file(path, dtype, shape)) for path in paths]
        for start in range(0, len(tokens), AT_ONCE):
            arrays = reader.arrays([*tokens[start : start + AT_ONCE], filler])
            for name, file in zip(how.inputs, files, strict=True):
                file.write(np.ascontiguousarray(arrays[name][:-1]).data)
    return PreparedTexts(
        how=how,
        tokenizer_sha256=sha256(folder / TOKENIZER),
        vocabulary=reader.vocabulary,
        cut=sum(each.cut for each in tokens),
        together=source.together,
    )


def _write_pixels(
    source: ImageFiles | ImageArray, indices: Sequence[int], how: Preprocessing, folder: Path
) -> list[Sample]:
    samples, shape = list[Sample](), (len(indices), *how.shape)
    prepared = in_parallel(lambda index: source.prepare(index, how), indices)
    try:
        with start_npy_file(folder / input_file(0), np.dtype(np.uint8), shape) as images, ExitStack() as opened:
            write = _truth_writer(folder, len(indices), opened)
            for sample, pixels, truth in progress(prepared, "samples", len(indices), "images"):
                samples.append(sample)
                images.write(pixels.data)
                if truth is not None:
                    write(truth)
    except EnginewrightError as error:
        raise source.refusal(error) if isinstance(source, ImageFiles) else error from None
    return samples


def write_uncropped(source: Source, indices: Sequence[int], folder: Path) -> None:
    """Write images of known classes before they are prepared, no larger than they must be to be prepared otherwise."""
    if not isinstance(source, ImageFiles | ImageArray) or source.labels is None:
        return
    images = [source.image(index) for index in indices[:MOST_UNCROPPED]]
    for image in images:
        longest = LARGEST_UNCROPPED * max(image.size) // min(image.size)
        image.thumbnail((longest, longest))
    np.savez_compressed(folder / UNCROPPED, *map(np.asarray, images))


def _truth_writer(folder: Path, count: int, opened: ExitStack) -> Callable[[NDArray[np.generic]], None]:
    """Return what writes the truth of one sample after the other; the first tells the type and shape of all."""
    files: list[IO[bytes]] = []

    def write(truth: NDArray[np.generic]) -> None:
        if not files:
            files.append(opened.enter_context(start_npy_file(folder / TRUTH, truth.dtype, (count, *truth.shape))))
        files[0].write(np.ascontiguousarray(truth).data)

    return write


def shared_images(manifests: Mapping[str, Manifest]) -> str | None:
    """Say which images are in several splits: an engine would be judged on images that it was made with."""
    hashes = {name: {sample.sha256 for sample in manifest.samples} for name, manifest in manifests.items()}
    shared = set[str]().union(*(one & other for one, other in combinations(hashes.values(), 2)))
    if not shared:
        return None
    samples = [(name, sample) for name, manifest in manifests.items() for sample in manifest.samples]
    first = next(sample.sha256 for _, sample in samples if sample.sha256 in shared)
    names = {split_name: sample.name for split_name, sample in samples if sample.sha256 == first}
    example = " and ".join(f"{name} ({split_name})" for split_name, name in names.items())
    kind = next(iter(manifests.values())).kind  # all splits are of one source
    return f"{len(shared)} {kind} are in several splits under different names, byte for byte the same: {example}"
