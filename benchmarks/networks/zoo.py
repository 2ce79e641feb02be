"""Run many models through the pipeline's own stages: what works, what is lost, and what caused it.

    python benchmarks/networks/zoo.py                      # all of zoo_models.py
    python benchmarks/networks/zoo.py timm segmentation    # two of its groups
    python benchmarks/networks/zoo.py resnet50 timm:dla34 transformers:bert
    python benchmarks/networks/zoo.py --jobs 8             # side by side, each on its share of the cores: no races then
    python benchmarks/networks/zoo.py --cluster HEAD:6379  # a core each, over a Ray cluster: no races either

Each model has its own process and project folder, with the project's params.yaml except SETTINGS and what the model
needs. NVIDIA's parser and builder (TensorRT for RTX) get every graph too, as convert writes it for TensorRT. Rows are
appended to `--rows`, a JSON line each. A sweep that was stopped continues with the next model; `--again` repeats models
with a row of an older commit. `--table` prints the last row of each model.
"""

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from zoo_models import GRAPH, GROUPS, TRAINED, Row, needs_of, train_by_graph

if TYPE_CHECKING:
    from enginewright.core.facts import PrecisionName

FOUND = Path("cures"), Path("tuned")  # what was found for a compiler
ROOT = Path(__file__).parents[2]
SETTINGS: dict[str, Any] = {
    "runtime": "openvino",  # the CPU's, where there is a GPU, too
    "samples": {"calibration": 64, "validation": 256},
    "calibration": {"batch": 4},  # memory: many models run side by side
    "search": {"int8": {"seconds": 240}},  # a sweep waits no longer
    "build": {"profile": {"batch": {"min": 1, "opt": 8, "max": 16}}},
    "validation": {"spot_samples": 16},
    "benchmark": {"batches": [8], "seconds": 0.3},
}
WIDE = {"cosine": -1, "relative_error": 1e6, "agreement": 0, "metric_drop": 1}  # thresholds that nothing breaks
NVIDIA = "tensorrt_rtx"
THREADS = 1  # of the race: with more, PyTorch loses many times over where other programs run beside it
GIGABYTES = int(os.environ.get("ZOO_GIGABYTES", "12"))  # of memory that one model may take


def run_model(
    name: str, row_file: Path, epochs: int | None, device: str, precisions: Sequence[str], timed: bool
) -> None:
    """Run a model in the current folder. Its row is written after each step, so that a crash keeps the steps before."""
    import torch

    from enginewright.core.cores import usable_cores
    from enginewright.core.params.all import Params
    from enginewright.engine.runtimes import find_cpu

    where = f"{find_cpu().device_name}, {usable_cores()} cores, PyTorch {torch.__version__}"
    row: Row = {"model": name, "where": where, "precisions": {}, "nvidia": {}, "seconds": {}}

    def step(what: str, call: Callable[[], object]) -> object:
        started = time.perf_counter()
        row["doing"] = what
        row_file.write_text(json.dumps(row))
        result = call()
        row["seconds"][what] = round(time.perf_counter() - started, 1)
        return result

    def attempt(what: str, call: Callable[[], object], found: Row, key: str) -> bool:
        try:
            found[key] = step(what, call)
        except Exception as error:  # any error is the reason in the row, and the next precision follows
            found[key] = {"failed": f"{what}: {' '.join(str(error).split())[:400] or type(error).__name__}"}
            return False
        return True

    if not attempt("make", partial(write_params, name, epochs, device), row, "needs"):
        row["failed"] = row["needs"]["failed"]
    elif not attempt("prepare", partial(prepare, step), row, "metrics"):
        row["failed"] = row["metrics"]["failed"]
    else:
        wanted = [name for name in Params.read().precisions if name in precisions or not precisions]
        made = [name for name in wanted if attempt(f"{name}", partial(take, name, step), row["precisions"], name)]
        for precision in made:
            attempt(f"nvidia {precision}", partial(nvidia_verdict, precision), row["nvidia"], precision)
        if timed:
            attempt("race", partial(race_engines, made), row, "ratios")
    del row["doing"]
    row_file.write_text(json.dumps(row))


def write_params(name: str, epochs: int | None, device: str) -> Row:
    """Write params.yaml with SETTINGS and what the model needs, and return what the row says of the model."""
    needed = needs_of(name, epochs, device)
    changes = needed.pop("changes")
    profile = SETTINGS["build"]["profile"] | changes.get("build", {}).get("profile", {})
    merged = {"samples": SETTINGS["samples"] | changes["samples"], "build": {"profile": profile}}
    lay_over_params(SETTINGS | changes | merged)
    return needed


def lay_over_params(changes: Row) -> None:
    """Write the project's params.yaml with these changes into the current folder."""
    shutil.copyfile(ROOT / "params.yaml", "params.yaml")
    change_params(changes)


def change_params(changes: Row) -> None:
    """Change the params.yaml of the current folder."""
    from enginewright.core.params.all import apply_recipe

    recipe = Path("recipe.yaml")
    with recipe.open("w") as file:
        YAML().dump(changes, file)
    apply_recipe(recipe)


def prepare(step: Callable[[str, Callable[[], object]], object]) -> dict[str, float]:
    """Run all stages before those of a precision, and return PyTorch's metrics, of which the first is judged."""
    from enginewright.core.params.all import Params
    from enginewright.measure.records import Reference
    from enginewright.pipeline.machine import MachinePaths, machine
    from enginewright.pipeline.model import export, reference
    from enginewright.pipeline.ranges import RescuePaths, calibrate, rescue, simplify
    from enginewright.pipeline.samples import samples
    from enginewright.pipeline.search import SearchPaths, search
    from enginewright.pipeline.weights import weights

    for folder in (
        "data/images",
        "data/texts",
        "data/weights",
        "data/models",
        "data/calibration",
        "data/plugins",
        "artifacts/samples",
        "reports/validation",
    ):
        Path(folder).mkdir(parents=True, exist_ok=True)
    made, sets = Path("artifacts"), {n: made_at(f"samples/{n}") for n in ("training", "calibration", "validation")}
    validation = sets["validation"]
    records = {name: made / f"{name}.json" for name in ("machine", "target", "dialect", "tools", "task")}
    records |= {"fitting": made / "cures.json"} | {name: made / name for name in ("tuning", "code", "parameters")}
    users = (*(Path("data") / name for name in ("models", "weights", "calibration", "plugins")), *FOUND)
    params = Params.read()
    step("machine", partial(machine, params, MachinePaths(*users, **records)))
    step("samples", partial(samples, params, Path("data/images"), Path("data/texts"), records["task"], **sets))
    if params.weights.source == TRAINED:
        step("train", partial(train_by_graph, sets["training"]))
    params = Params.read()
    step(
        "weights",
        partial(weights, params, Path("data/weights"), Path("data/models"), sets["training"], made / "weights"),
    )
    step("export", partial(export, params, made / "weights", validation, made / "exported"))
    simplified = made / "simplified", made / "given"
    step("simplify", partial(simplify, params, made / "exported", validation, *simplified))
    step("reference", partial(reference, params, made / "weights", validation, made / "reference"))
    step(
        "calibrate",
        partial(
            calibrate,
            params,
            Path("data/calibration"),
            made / "simplified",
            sets["calibration"],
            records["dialect"],
            made / "calibrated",
        ),
    )
    for name in params.search:
        found, code = made / "searched" / f"{name}.json", records["code"] / "search.json"
        found.parent.mkdir(exist_ok=True)
        ranges, rescued = (made / "simplified", made / "calibrated"), made / "rescued" / name
        of = sets["calibration"], records["dialect"]
        step(f"rescue {name}", partial(rescue, params, name, RescuePaths(*ranges, *of, rescued)))
        step(f"search {name}", partial(search, params, name, SearchPaths(*ranges, rescued, *of, code, found)))
    return Reference.read(made / "reference" / "reference.json").metrics


def made_at(place: str) -> Path:
    return Path("artifacts") / place


def make_engine(precision: "PrecisionName", step: Callable[[str, Callable[[], object]], object]) -> tuple[Path, Path]:
    """Run the stages that make an engine, and return the folders of its graph and of itself."""
    from enginewright.core.params.all import Params
    from enginewright.pipeline.build import BuildPaths, build
    from enginewright.pipeline.graphs import ConvertPaths, convert

    converted, engine = made_at(f"converted/{precision}"), made_at(f"engines/{precision}")
    converted.parent.mkdir(exist_ok=True)
    engine.parent.mkdir(exist_ok=True)
    params = Params.read()
    made_from = params.precisions[precision].made_from
    places = (
        "simplified",
        made_from,
        "calibrated",
        "rescued",
        "samples/calibration",
        "dialect.json",
        "exported/boxes.json",
        "cures.json",
    )
    given = ConvertPaths(*(*map(made_at, places), converted))
    validation = made_at("samples/validation")
    step(f"{precision} convert", lambda: convert(params, precision, given))
    calibration, plan = made_at("samples/calibration"), made_at(f"tuning/{precision}.json")
    sets = validation, calibration
    paths = BuildPaths(converted, made_at("target.json"), *sets, Path("data/plugins"), plan, FOUND[1], engine)
    step(f"{precision} build", lambda: build(params, precision, paths))
    return converted, engine


def take(precision: "PrecisionName", step: Callable[[str, Callable[[], object]], object]) -> Row:
    """Make an engine, and say what validation finds."""
    from enginewright.core.params.all import Params
    from enginewright.engine.record import EngineRecord
    from enginewright.measure.records import Validation
    from enginewright.pipeline.engine import ValidatePaths, validate

    converted, engine = make_engine(precision, step)
    report, examples = Path("reports/validation") / f"{precision}.json", made_at(f"examples/{precision}")
    given = engine, converted, made_at("samples/validation"), made_at("reference"), made_at("machine.json")
    paths = ValidatePaths(*given, report, examples)
    step(f"{precision} validate", lambda: validate(Params.read(), precision, paths))
    found = Validation.read(report)
    return {
        "cosine": found.engine_against_pytorch.cosine,
        "relative": found.engine_against_pytorch.relative,
        "graph": found.graph_against_pytorch.relative,
        "compiler": found.engine_against_graph.relative,
        "agreement": found.agreement and found.agreement.share,
        "metric": found.main.engine if found.main else None,
        "broken": list(found.broken),
        "fault": found.loss_comes_from,
        "executed": EngineRecord.read(engine / "engine.json").executed,
    } | spared_in(converted)


def spared_in(converted: Path) -> Row:
    """Say how many layers a search left in floating point, and their share of the work, where it had a part."""
    from enginewright.precision.records import SEARCH, Search

    if not (converted / SEARCH).exists():
        return {}
    found = Search.read(converted / SEARCH)
    return {"spared": len(found.spared), "layers": len(found.layers), "work": found.chosen.work}


def nvidia_verdict(precision: "PrecisionName") -> str:
    """Parse and build the graph that TensorRT gets, and return `ok`; an error is raised."""
    from enginewright.core.params.all import Params
    from enginewright.engine.runtimes import load_runtime
    from enginewright.graph.read_interface import read_blueprint
    from enginewright.pipeline.graphs import ConvertPaths, convert
    from enginewright.precision.dialect import dialect_of

    params = Params.read()
    with tempfile.TemporaryDirectory() as scratch:
        dialect, converted, engine = (Path(scratch) / name for name in ("dialect.json", "converted", "engine"))
        dialect_of("tensorrt", "cuda", "").write(dialect)
        source = params.precisions[precision].made_from
        simplified, made_from, calibrated, rescued = map(made_at, ("simplified", source, "calibrated", "rescued"))
        calibration, boxes, cures = map(made_at, ("samples/calibration", "exported/boxes.json", "cures.json"))
        graphs = simplified, made_from, calibrated, rescued
        convert(params, precision, ConvertPaths(*graphs, calibration, dialect, boxes, cures, converted))
        engine.mkdir()
        graph = converted / "model.onnx"
        load_runtime(NVIDIA).compile(graph, read_blueprint(graph, params.build), engine)
    return "ok"


def race_engines(precisions: Sequence[str]) -> dict[str, float]:
    """Return how many times as fast as PyTorch eager each engine is: a rough number, from one short race of all."""
    import torch

    from enginewright.core.params.all import Params
    from enginewright.data.sample_set import SampleSet
    from enginewright.engine.engine import open_engine
    from enginewright.engine.machine import Machine
    from enginewright.measure.benchmark import race_contenders
    from enginewright.measure.contenders import bind_pytorch, pace_meter
    from enginewright.model.checkpoint import load_model

    params, here = Params.read(), Machine.read(made_at("machine.json"))
    inference = params.inference.model_copy(update={"threads": THREADS})
    torch.set_num_threads(THREADS)
    model = load_model(made_at("weights"))
    engines = {name: open_engine(made_at(f"engines/{name}"), here, inference) for name in precisions}
    eager, *_ = params.benchmark.baselines
    (batch,) = params.benchmark.batches
    contenders: dict[str, Any] = {name: engine.bind for name, engine in engines.items()}
    record = engines["fp32"].record
    contenders |= {eager: bind_pytorch(model, eager, record), "engine": contenders["fp32"]}
    race = race_contenders(
        contenders,
        SampleSet.open(made_at("samples/validation")).tuned(record.build),
        params.benchmark,
        pace_meter(here.device, THREADS),
        "race",
    )
    return {name: median(race.timings[batch].ratios(eager, name)) for name in engines}


def sweep(models: Sequence[str], rows: Path, again: bool, run: Callable[[list[str]], Iterable[Row]]) -> None:
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True).strip()
    done = {row["model"]: row for row in read(rows)}
    left = [model for model in models if model not in done or (again and done[model]["commit"] != commit)]
    for row in run(left):
        keep(rows, {"commit": commit} | row)
        print(json.dumps(row), flush=True)


def on_this_machine(
    models: Sequence[str], jobs: int, minutes: int, options: Sequence[str], script: str = __file__
) -> Iterator[Row]:
    """Run so many models at a time, each on cores of its own."""
    cores = sorted(os.sched_getaffinity(0))
    each = max(1, len(cores) // jobs)
    free: SimpleQueue[list[int]] = SimpleQueue()
    for number in range(jobs):
        free.put(cores[each * number :][:each] or cores)

    def run(model: str) -> Row:
        mine = free.get()
        row = row_of([script, model, *options], model, minutes, mine)
        free.put(mine)
        return row

    with ThreadPoolExecutor(jobs) as pool:
        for done in as_completed([pool.submit(run, model) for model in models]):
            yield done.result()


def side_by_side(models: Sequence[str], address: str, arguments: Sequence[str]) -> Iterator[Row]:
    """Run each model on one core of a cluster whose nodes have this commit. Nothing is timed: others run beside it."""
    import ray

    from enginewright.core.errors import EnginewrightError
    from enginewright.targets.ray_cluster import require_answer

    try:
        require_answer(address)  # Ray would try for minutes
    except EnginewrightError as error:
        sys.exit(str(error).replace("cluster.address", "--cluster").partition(", or")[0])
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address=address, log_to_driver=False)
    task = ray.remote(row_on_node)
    waiting = {task.options(num_cpus=1, max_retries=2).remote(model, arguments): model for model in models}
    while waiting:
        (done,), _ = ray.wait(list(waiting))
        model = waiting.pop(done)
        try:
            yield ray.get(done)
        except ray.exceptions.RayError as error:
            yield {"model": model, "precisions": {}, "nvidia": {}, "failed": str(error).strip().splitlines()[-1][:300]}


def row_on_node(model: str, arguments: Sequence[str]) -> Row:
    """Run this script there, as the clone that the node imports Enginewright from has it."""
    import enginewright

    script = Path(enginewright.__file__).parents[1] / "benchmarks" / "networks" / "zoo.py"
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.jsonl"
        command = [sys.executable, str(script), model, "--untimed", "--rows", str(rows), *arguments]
        done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
        if not rows.exists():
            raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
        row: Row = json.loads(rows.read_text())
        return row


def row_of(script: list[str], model: str, minutes: int, cores: Sequence[int] = ()) -> Row:
    """Run a script in a new folder, within bounds of time and memory, and return the row that it wrote so far."""
    with tempfile.TemporaryDirectory(prefix=f"{model.replace(':', '-')}.") as scratch:
        row_file, log = Path(scratch) / "row.json", Path(scratch) / "log"
        command = [sys.executable, *script, "--one", str(row_file)]
        folders = [str(ROOT), scratch, *filter(None, [os.environ.get("PYTHONPATH")])]
        started = time.perf_counter()
        try:
            with log.open("w") as output:
                code = subprocess.run(
                    command,
                    cwd=scratch,
                    env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "NNCF_CI": "1"},  # reports no usage
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    timeout=60 * minutes,
                    preexec_fn=partial(bound, cores),
                ).returncode
        except subprocess.TimeoutExpired:
            code = None
        row: Row = json.loads(row_file.read_text()) if row_file.exists() else {"model": model}
        if code != 0:
            row.setdefault("precisions", {})
            row.setdefault("nvidia", {})
            last = (log.read_text().strip().splitlines() or [""])[-1][:300]
            row["failed"] = f"{row.get('doing')}: " + (f"over {minutes} minutes" if code is None else f"{code}, {last}")
        return row | {"minutes": round((time.perf_counter() - started) / 60, 1)}


def bound(cores: Sequence[int]) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    resource.setrlimit(resource.RLIMIT_DATA, (GIGABYTES << 30, GIGABYTES << 30))


def keep(rows: Path, row: Row) -> None:
    with rows.open("a") as file:
        file.write(json.dumps(row) + "\n")


def read(rows: Path) -> list[Row]:
    return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []


def table(rows: list[Row]) -> str:
    """Write a Markdown table with a row for each model, and a line for each broken threshold below it."""
    latest = {row["model"]: row for row in rows}
    precisions = list(dict.fromkeys(name for row in rows for name in row["precisions"]))
    lines = [
        f"| model | size | trained for | PyTorch | {' | '.join(precisions)} | NVIDIA's parser and builder |",
        "|---" * (len(precisions) + 5) + "|",
    ]
    for row in latest.values():
        cells = [cell(row, precision) for precision in precisions]
        needs = row.get("needs", {})
        begin = f"| {row['model']} | {needs.get('size', '-')} | {needs.get('weights', '-')} | {measured(row)}"
        lines.append(f"{begin} | {' | '.join(cells)} | {nvidia(row)} |")
    broken = [
        f"- {row['model']}, {precision}: {'; '.join(found['broken'])}. The larger part of the error is the "
        f"{found['fault']}'s: the graph as written is {found['graph']:.1e} from PyTorch, the engine "
        f"{found['compiler']:.1e} from the graph."
        for row in latest.values()
        for precision, found in row["precisions"].items()
        if found.get("broken")
    ]
    failed = [f"- {row['model']}: {row['failed']}" for row in latest.values() if "failed" in row]
    return "\n".join([*lines, "", *made_by(list(latest.values())), "", *broken, *failed])


def measured(row: Row) -> str:
    """Return PyTorch's metric, the one of its task that is judged. An embedding without scored pairs has none."""
    metrics = row.get("metrics") or {}
    for name, value in metrics.items():
        if name != "failed":
            return f"{name} {value:.1%}"
    return "-"


def made_by(rows: list[Row]) -> list[str]:
    """Say which code and which machine made which rows. The oldest rows do not name a machine."""
    makers: dict[str, list[str]] = {}
    for row in rows:
        maker = f"{row['commit']}, {row.get('where', 'on a machine that was not recorded')}"
        makers.setdefault(maker, []).append(row["model"])
    return [f"- {maker}: {', '.join(models)}." for maker, models in sorted(makers.items())]


def cell(row: Row, precision: str) -> str:
    found = row["precisions"].get(precision)
    if found is None:
        return "-"
    if "failed" in found:
        return f"failed: {found['failed']}"
    executed = max(found["executed"], key=found["executed"].get)
    ratio = row.get("ratios", {}).get(precision)
    speed = f", {ratio:.1f} times" if isinstance(ratio, float) else ""
    run_as = "" if executed == precision else f", run as {executed}"
    verdict = "**broken**" if found["broken"] else "ok"
    same = "" if found["agreement"] is None else f", {found['agreement']:.1%}"
    spared = f", {found['spared']} of {found['layers']} spared" if found.get("spared") else ""
    return f"{verdict} {found['cosine']:.5f}{same}{speed}{run_as}{spared}"


def nvidia(row: Row) -> str:
    refused = [f"{name}: {verdict['failed']}" for name, verdict in row["nvidia"].items() if verdict != "ok"]
    accepted = [name for name, verdict in row["nvidia"].items() if verdict == "ok"]
    return "; ".join([", ".join(accepted) or "-", *refused])


def parser_of(description: str, models: Iterable[str], rows: Path, models_are: str | None = None) -> ArgumentParser:
    """Return what parses the arguments that all have whose models are rows."""
    parser = ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=list(models), help=models_are)
    parser.add_argument("--rows", type=Path, default=rows)
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--one", type=Path, help="the file of the row of the one model, which runs in this process")
    return parser


def main() -> None:
    parser = parser_of(__doc__, GROUPS, Path("zoo.jsonl"), f"names, or groups: {', '.join(GROUPS)}")
    parser.add_argument("--minutes", type=int, default=15, help="how long one model may take")
    parser.add_argument("--again", action="store_true")
    parser.add_argument(
        "--epochs", type=int, help="of training; 0 fits only a classifier's last layer, on random weights"
    )
    parser.add_argument("--device", choices=("cpu", "cuda", GRAPH), default="cpu", help="where to train")
    parser.add_argument("--precisions", nargs="+", default=[], help="all of params.yaml unless told")
    parser.add_argument("--untimed", action="store_true", help="leave out the race, which other work would disturb")
    parser.add_argument("--jobs", type=int, default=1, help="how many models run at a time, untimed if several")
    parser.add_argument("--cluster", metavar="HOST:PORT", help="the head of a Ray cluster to run models on, untimed")
    options = parser.parse_args()
    models = [name for given in options.models for name in GROUPS.get(given, [given])]
    passed = ["--device", options.device, *([] if options.epochs is None else ["--epochs", str(options.epochs)])]
    passed += ["--precisions", *options.precisions] if options.precisions else []
    if options.table:
        print(table([row for row in read(options.rows) if options.models == list(GROUPS) or row["model"] in models]))
    elif options.one:
        timed = not options.untimed
        run_model(models[0], options.one, options.epochs, options.device, options.precisions, timed)
    elif options.cluster:
        arguments = ["--minutes", str(options.minutes), *passed]
        run = partial(side_by_side, address=options.cluster, arguments=arguments)
        sweep(models, options.rows, options.again, run)
    else:
        passed += ["--untimed"] if options.untimed or options.jobs > 1 else []
        run = partial(on_this_machine, jobs=options.jobs, minutes=options.minutes, options=passed)
        sweep(models, options.rows, options.again, run)


if __name__ == "__main__":
    main()
