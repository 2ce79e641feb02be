"""A model repository for Triton Inference Server."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from enginewright.bundle.gate import Passed
from enginewright.core.errors import EnginewrightError
from enginewright.core.params.samples import Preprocessing, TextPreprocessing
from enginewright.core.templates import templates_in
from enginewright.core.text import file_size
from enginewright.data.sample_set import TOKENIZER
from enginewright.engine.record import EngineRecord
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.runtimes.openvino_graph import write_ir
from enginewright.graph.interface import TensorSpec
from enginewright.measure.records import baseline_title

# Write the files of a bundle that are made from templates, and preprocessing that needs only NumPy and Pillow.

TEMPLATES = Path(__file__).parent / "templates"
DATA = Path(__file__).parent.parent / "data"
REPLACED = {  # to make the preprocessing from Enginewright's own source: a second copy would drift from the first
    "from enginewright.core.errors import EnginewrightError\n": "",
    "from enginewright.core.params.samples import Preprocessing\n": "",
    "from pathlib import Path\n": "from pathlib import Path\nfrom types import SimpleNamespace as Preprocessing\n",
    "EnginewrightError": "ValueError",
}


REPLACED_IN_TEXTS = {
    "from enginewright.core.errors import EnginewrightError\n": "",
    "from enginewright.core.params.samples import IDS, MASK, TYPES, TextPreprocessing\n": "",
    "from pathlib import Path\n": "from pathlib import Path\nfrom types import SimpleNamespace as TextPreprocessing\n",
    "Text = tuple": 'IDS, MASK, TYPES = "ids", "mask", "types"\nText = tuple',
    "EnginewrightError": "ValueError",
}


def render(template: str, facts: Mapping[str, object]) -> str:
    environment = templates_in(TEMPLATES)
    environment.filters |= {"percent": _percent, "title_of": baseline_title, "file_size": file_size}
    return environment.get_template(template).render(facts)


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{share:.2%}"


def preprocessing_for_bundle(how: Preprocessing) -> str:
    """Return the parameters with what follows from them, because a bundle has no class that could compute it."""
    return json.dumps(how.model_dump(mode="json") | {"channels": how.channels, "shape": how.shape}, indent=2) + "\n"


def texts_for_bundle(how: TextPreprocessing) -> str:
    return json.dumps(how.model_dump(mode="json") | {"meanings": how.meanings}, indent=2) + "\n"


def standalone_preprocessing() -> str:
    return _standalone("preprocessing.py", REPLACED)


def standalone_tokenization() -> str:
    return _standalone("texts.py", REPLACED_IN_TEXTS)


def _standalone(name: str, replaced: Mapping[str, str]) -> str:
    text = (DATA / name).read_text(encoding="utf-8")
    for ours, plain in replaced.items():
        if ours not in text:
            raise AssertionError(f"{name} has no {ours.strip()!r} to replace")
        text = text.replace(ours, plain)
    return text


BACKENDS = ("tensorrt", "onnxruntime", "openvino")  # runtimes and their backends have the same names
DEFAULT_NAMES = {"engine.plan": "model.plan", "engine.onnx": "model.onnx"}
SMALL = 16  # up to this batch size launching kernels one by one costs most; Triton's own choice goes as far
TYPES = {
    "float32": "TYPE_FP32", "float16": "TYPE_FP16", "bfloat16": "TYPE_BF16", "int8": "TYPE_INT8", "int32": "TYPE_INT32",
    "int64": "TYPE_INT64", "uint8": "TYPE_UINT8", "bool": "TYPE_BOOL",
}  # fmt: skip


def is_served(record: EngineRecord) -> bool:
    """Tell whether Triton can serve the engine: its backend of TensorRT never refits one that lacks its weights, and
    no configuration for inputs that hold sizes was tried."""
    return record.target.runtime in BACKENDS and not record.weights and not holds_sizes(record)


def holds_sizes(record: EngineRecord) -> bool:
    return any(spec.values for spec in record.interface.inputs)


def write_repository(passed: Passed, model: str, labels: str, folder: Path) -> None:
    """Write config.pbtxt, the labels, and the model as version 1 into FOLDER/MODEL."""
    version = folder / model / "1"
    version.mkdir(parents=True)
    runtime = passed.record.target.runtime
    if runtime == "openvino":
        if missing := load_runtime("openvino").missing():
            raise EnginewrightError(f"Triton gets the model in OpenVINO's own form, but {missing}")
        write_ir(passed.onnx, version)
    else:
        for name in passed.record.files.keys() - {TOKENIZER}:
            shutil.copyfile(passed.folder / name, version / DEFAULT_NAMES.get(name, name))
    (folder / model / "labels.txt").write_text(labels, encoding="utf-8")
    (folder / model / "config.pbtxt").write_text(configuration(passed, model), encoding="utf-8")


def configuration(passed: Passed, model: str) -> str:
    record = passed.record
    sizes = record.profile.batch
    profiles = record.build.all_profiles if record.target.runtime == "tensorrt" else (record.profile,)
    largest = sizes.opt if record.target.runtime == "openvino" else sizes.max
    return render(
        "config.pbtxt.j2",
        {
            "model": model,
            "record": record,
            "target": record.target,
            "batch": sizes,
            "max_batch": largest,
            # None below the profile's: Triton would send batches so small at once, instead of waiting for larger ones.
            "preferred": sorted({*(one.batch.opt for one in profiles if one.batch.opt >= sizes.opt), largest}),
            "profiles": [str(number) for number in range(len(profiles))],
            "replayed": replayed_sizes(passed),
            "settings": passed.settings,
            "resizes": record.profile.resizes,
            "types": TYPES,
            "dims": _dims,
        },
    )


def replayed_sizes(passed: Passed) -> list[int]:
    """Return the batch sizes that Triton replays as CUDA graphs: small ones, those of the report, and preferred ones.

    Each graph takes memory of the GPU, and serves its own batch size alone.
    """
    benchmark, sizes = passed.measured.benchmark, passed.record.profile.batch
    if passed.record.target.runtime != "tensorrt" or not benchmark.cuda_graph:
        return []
    small = range(sizes.min, min(sizes.max, SMALL) + 1)
    measured = (latency.batch for latency in benchmark.latencies)
    tuned = (profile.batch.opt for profile in passed.record.build.all_profiles)
    return sorted({*small, *measured, *tuned, sizes.max})


def _dims(spec: TensorSpec) -> list[int]:
    """Return the shape as Triton writes it: without the batch, and with -1 for a size that varies."""
    return [size if isinstance(size, int) else -1 for size in spec.shape[1:]]
