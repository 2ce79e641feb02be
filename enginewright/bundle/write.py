"""Write a bundle: the folder to deploy, with an engine and all that is needed to use, serve and trace it."""

import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import numpy as np

import enginewright
from enginewright.bundle.facts import Passed, example_of, facts_of, has_cpp_example, is_served, render, requirements
from enginewright.bundle.sbom import licence_text, write_sbom
from enginewright.bundle.verify import MANIFEST, SIGNATURE
from enginewright.core.errors import EnginewrightError
from enginewright.core.facts import RUNTIMES
from enginewright.core.files import Record, alone_in, new_folder, sha256
from enginewright.core.installing import how_to_install
from enginewright.core.params.all import Params
from enginewright.core.params.samples import Preprocessing, TextPreprocessing
from enginewright.data.sample_set import TOKENIZER, SampleSet
from enginewright.engine.engine import open_engine
from enginewright.engine.record import BUNDLED, RECORD, REPRODUCE, read_engine, require_made_of
from enginewright.engine.runtimes import load_runtime
from enginewright.engine.runtimes.openvino_graph import write_ir
from enginewright.engine.tools import reproduce_script
from enginewright.graph.files import copy_graph

PACKAGE = Path(enginewright.__file__).parent
SAMPLE = "example.npz"
DEFAULT_NAMES = {"engine.plan": "model.plan", "engine.onnx": "model.onnx"}
SMALL = 16  # up to this batch size launching kernels one by one costs most; Triton's own choice goes as far
MAKE_KEY = "`openssl genpkey -algorithm ed25519 -out KEY.pem` makes one"


class Bundle(Record):
    """bundle.json: the hashes of a bundle's files. It also marks a folder as a bundle."""

    precision: str
    engine: str
    files: dict[str, str]


def write_bundle(passed: Passed, params: Params, out: Path | None, key: Any = None) -> Path:
    """Write and return the folder of a bundle, signed if a private key is given. By itself it lies in bundles/."""
    precision = passed.record.precision
    name = Path(params.model.source).stem if params.model.is_onnx else params.model.source
    model = re.sub(r"[^A-Za-z0-9_.-]+", "-", f"{name}-{precision}")  # which is the name of a folder
    folder = out or Path("bundles") / model
    above = folder.resolve().parent
    above.mkdir(parents=True, exist_ok=True)
    with alone_in(above):  # another writer would take what is unfinished for what a kill left
        require_replaceable(folder)
        with new_folder(folder.resolve()) as unfinished:
            fill(passed, params, model, unfinished, key is not None)
            require_unchanged(passed, unfinished)
            files = {path.relative_to(unfinished).as_posix(): sha256(path) for path in files_in(unfinished)}
            Bundle(precision=precision, engine=passed.record.identity, files=files).write(unfinished / MANIFEST)
            if key:
                (unfinished / SIGNATURE).write_bytes(key.sign((unfinished / MANIFEST).read_bytes()))
    return folder


def read_key(file: Path) -> Any:
    """Read a private Ed25519 key. `openssl` makes such keys and checks their signatures, too."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise EnginewrightError(
            f"--sign needs the package cryptography, which `{how_to_install('sign')}` installs"
        ) from None
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except TypeError:
        raise EnginewrightError(f"{file} is encrypted: give a key without a password, such as from a secret") from None
    except (ValueError, UnsupportedAlgorithm):
        raise EnginewrightError(f"{file} is no private key in PEM; {MAKE_KEY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise EnginewrightError(f"{file} is another kind of key, and Ed25519 is needed; {MAKE_KEY}")
    return key


def require_replaceable(folder: Path) -> None:
    """Refuse to replace anything but a bundle, or a bundle in which somebody added or changed a file."""
    if folder.exists() and not folder.is_dir():
        raise EnginewrightError(f"{folder} is a file: give a folder with --out")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / MANIFEST).is_file():
        raise EnginewrightError(f"{folder} is no bundle and stays as it is: give another folder with --out")
    known = Bundle.read(folder / MANIFEST).files
    for path in files_in(folder):
        name = path.relative_to(folder).as_posix()
        if name not in (MANIFEST, SIGNATURE) and known.get(name) != sha256(path):
            change = "was changed" if name in known else "is none of its files"
            raise EnginewrightError(f"{folder} would be replaced, but {name} {change}: save it, or give another --out")


def require_unchanged(passed: Passed, bundle: Path) -> None:
    """Refuse copies of another engine or graph than what passed: a run may have made new ones meanwhile."""
    try:
        same = read_engine(bundle / BUNDLED) == passed.record
        require_made_of(passed.record, passed.record.precision, bundle / passed.onnx.name)
    except EnginewrightError:
        same = False
    if not same:
        raise EnginewrightError(f"{passed.folder} was changed while it was packed, as by `dvc repro`: pack it again")


def files_in(folder: Path) -> list[Path]:
    """Return all files but those that Python caches when the example runs."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.parent.name != "__pycache__")


def fill(passed: Passed, params: Params, model: str, folder: Path, signed: bool) -> None:
    record, facts = passed.record, facts_of(passed, params, model, signed)
    runtime, labels = record.target.runtime, "".join(f"{name}\n" for name in record.class_names)
    (folder / BUNDLED).mkdir()
    for name in (*record.files, RECORD):
        shutil.copyfile(passed.folder / name, folder / BUNDLED / name)
    copy_graph(passed.onnx, folder)
    parts = [path for path in files_in(folder) if path.name != RECORD]
    write_sbom(record, model, requirements(record), parts, folder)
    shutil.copyfile(PACKAGE / "bundle" / "verify.py", folder / "verify.py")
    files = {name: render(f"{name}.j2", facts) for name in ("README.md", "NOTICE", "requirements.txt")}
    files |= {"labels.txt": labels, "LICENSE": licence_text()}
    if RUNTIMES[runtime].is_tensorrt:
        files[f"{BUNDLED}/{REPRODUCE}"] = reproduce_script(record, "../model.onnx")
    else:
        files[REPRODUCE] = render(f"reproduce-{runtime}.sh.j2", facts)
    if example_of(record):
        files |= write_example(passed, params, facts, folder)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    if is_served(record):
        write_repository(passed, model, labels, folder / "triton")


def write_example(passed: Passed, params: Params, facts: Mapping[str, object], folder: Path) -> dict[str, str]:
    """Copy the code that the validation used, and return the other files of the example, by name."""
    record, kind = passed.record, example_of(passed.record)
    files = {"infer.py": render("infer.py.j2", facts), "runtime.py": render(f"runtime/{facts['runtime']}.py.j2", facts)}
    if kind == "arrays":
        write_sample(passed, params, folder)
    elif record.text:
        shutil.copyfile(PACKAGE / "data" / "texts.py", folder / "tokenization.py")
        files["text.json"] = settings_for_bundle(record.text.how)
    elif record.preprocessing:
        shutil.copyfile(PACKAGE / "data" / "preprocessing.py", folder / "preprocessing.py")
        files["preprocessing.json"] = settings_for_bundle(record.preprocessing)
    if kind == "boxes":
        shutil.copyfile(PACKAGE / "tasks" / "boxes.py", folder / "boxes.py")
        files["boxes.json"] = f"{json.dumps(facts['boxes'], indent=2)}\n"
    if has_cpp_example(record):
        (folder / "cpp").mkdir()
        for name in ("main.cpp", "CMakeLists.txt", *(["boxes.hpp"] if kind == "boxes" else [])):
            files[f"cpp/{name}"] = render(f"{name}.j2", facts)
    return files


def settings_for_bundle(how: Preprocessing | TextPreprocessing) -> str:
    """Return parameters with what follows from them, because a bundle has no class that could compute it."""
    derived = {name: getattr(how, name) for name in ("channels", "shape", "meanings") if hasattr(how, name)}
    return json.dumps(how.model_dump(mode="json") | derived, indent=2) + "\n"


def write_sample(passed: Passed, params: Params, folder: Path) -> None:
    """Write the smallest batch of real samples, and what the engine answers if it can be opened here."""
    feeds = SampleSet.open(passed.samples).fed_to(passed.record.build).cycled(passed.record.profile.batch.min)
    try:
        engine = open_engine(passed.folder, None, params.inference)
    except EnginewrightError as error:
        print(f"{SAMPLE} holds inputs without the engine's answer: {error}", file=sys.stderr)
        arrays = feeds
    else:
        with engine:
            arrays = {**feeds, **engine.run(feeds)}
    with ZipFile(folder / SAMPLE, "w") as archive:  # np.savez takes no array that is called `file`
        for name, array in arrays.items():
            with archive.open(ZipInfo(f"{name}.npy"), "w") as file:  # of 1980, so that the same bundle is the same file
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)


# A model repository for Triton Inference Server.


def write_repository(passed: Passed, model: str, labels: str, folder: Path) -> None:
    """Write config.pbtxt, the labels, and the model as version 1 into FOLDER/MODEL."""
    version = folder / model / "1"
    version.mkdir(parents=True)
    if passed.record.target.runtime == "openvino":
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
    sizes, within = record.profile.batch, passed.measured.benchmark.within
    serving = within.at_random if within else None  # what keeps the latency that benchmark.within_ms asks for
    profiles = record.build.all_profiles if record.target.runtime == "tensorrt" else (record.profile,)
    usual = sizes.opt if record.target.runtime == "openvino" else sizes.max
    largest = serving.batch if serving else usual
    facts = {
        "model": model,
        "record": record,
        "max_batch": largest,
        "within": within,
        "serving": serving,
        # None below the profile's: Triton would send batches so small at once, instead of waiting for larger ones.
        "preferred": sorted({*(one.batch.opt for one in profiles if sizes.opt <= one.batch.opt <= largest), largest}),
        "profiles": [str(number) for number in range(len(profiles))],
        "replayed": [size for size in replayed_sizes(passed) if size <= largest],
        "settings": passed.settings,
    }
    return render("config.pbtxt.j2", facts)


def replayed_sizes(passed: Passed) -> list[int]:
    """Return the batch sizes that Triton replays as CUDA graphs: small ones, those of the report, and preferred ones.
    Each graph takes memory of the GPU, and serves its own batch size alone."""
    benchmark, sizes = passed.measured.benchmark, passed.record.profile.batch
    if passed.record.target.runtime != "tensorrt" or not benchmark.cuda_graph:
        return []
    small = range(sizes.min, min(sizes.max, SMALL) + 1)
    measured = (latency.batch for latency in benchmark.latencies)
    tuned = (profile.batch.opt for profile in passed.record.build.all_profiles)
    return sorted({*small, *measured, *tuned, sizes.max})
