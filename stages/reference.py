"""PyTorch's own outputs over the validation set: what every engine is held against."""

from pathlib import Path

from enginery.agreement import accuracy
from enginery.core.files import new_folder
from enginery.core.params import load_params
from enginery.core.progress import progress
from enginery.core.records import Reference
from enginery.core.stage import run_stage
from enginery.original import open_original
from enginery.samples import SampleSet
