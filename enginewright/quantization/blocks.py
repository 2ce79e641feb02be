"""Round weights in blocks: numbers of a row, one after the other, that share a scale.

ModelOpt's int4 knows no weights in rows, and its search is slow without a GPU: docs/precisions.md compares the errors.
Its nvfp4 and mxfp8 are for graphs that its PyTorch half wrote. test_write_blocks.py holds the numbers against its own.
"""

from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.generic]
Rows = NDArray[np.float32]  # each is what a product sums over for one column of its result

LARGEST_INT4, LARGEST_FP4, LARGEST_FP8 = 7, 6, 448
LARGEST_NVFP4 = LARGEST_FP4 * LARGEST_FP8  # in units of the scale of all blocks
E8M0_OF_ONE = 127  # the byte that stands for a scale of 2 to the power of 0
SHARES = np.linspace(1.0, 0.6, 21)  # of the largest magnitude in a block, that its largest number may stand for
SMALLEST_FP8 = np.float32(2.0**-9)
TINY = 1e-12


class Blocks(NamedTuple):
    numbers: Array  # as many as there are weights
    scales: Array  # one for each block
    of_scales: Array = np.ones((), np.float32)  # what the scales are multiplied by


def in_int4(rows: Rows, size: int, dtype: np.dtype[np.generic]) -> Blocks:
    """Round to integers from -8 to 7. Of several scales, each block takes the one with the least squared error."""
    blocks = _split(rows, size)
    amax, least = np.maximum(_amax(blocks), TINY), np.full(blocks.shape[:-1], np.inf, np.float32)
    numbers, scales = np.zeros(blocks.shape, np.int8), np.zeros(amax.shape, dtype)
    for share in SHARES:
        tried = (amax * np.float32(share / LARGEST_INT4)).astype(dtype)
        exact = np.maximum(tried.astype(np.float32), TINY)[..., None]
        rounded = np.clip(np.rint(blocks / exact), -LARGEST_INT4 - 1, LARGEST_INT4)
        error = np.square(rounded * exact - blocks).sum(-1)
        better = error < least
        least[better], numbers[better], scales[better] = error[better], rounded[better], tried[better]
    return Blocks(numbers.reshape(rows.shape).astype(ml_dtypes.int4), scales)


def in_nvfp4(rows: Rows, size: int) -> Blocks:
    """Round to float4 (E2M1), with a scale for each block in float8 (E4M3), and one for all blocks in float32."""
    blocks = _split(rows, size)
    whole = np.maximum(np.abs(rows).max() / np.float32(LARGEST_NVFP4), TINY)
    scales = np.maximum(_amax(blocks) / LARGEST_FP4 / whole, SMALLEST_FP8).astype(ml_dtypes.float8_e4m3fn)
    exact = (scales.astype(np.float32) * whole)[..., None]
    numbers = np.clip(blocks / exact, -LARGEST_FP4, LARGEST_FP4).astype(ml_dtypes.float4_e2m1fn)
    return Blocks(numbers.reshape(rows.shape), scales, np.asarray(whole, np.float32))


def in_mxfp8(rows: Rows, size: int) -> Blocks:
    """Round to float8 (E4M3), with a power of two as the scale of each block, as a byte (E8M0)."""
    blocks = _split(rows, size)
    powers = np.ceil(np.log2(np.maximum(_amax(blocks), TINY) / LARGEST_FP8))
    numbers = (blocks / np.exp2(powers)[..., None]).astype(ml_dtypes.float8_e4m3fn)
    return Blocks(numbers.reshape(rows.shape), (powers + E8M0_OF_ONE).astype(np.uint8))


def _split(rows: Rows, size: int) -> Rows:
    return rows.reshape(len(rows), -1, size)


def _amax(blocks: Rows) -> Rows:
    return np.asarray(np.abs(blocks).max(axis=-1), np.float32)
