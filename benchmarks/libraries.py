"""Take models of transformers and timm from PyTorch to int8 for a CPU: what exports, what is lost, what fails where.

    python benchmarks/libraries.py                  # all of TRANSFORMERS and TIMM
    python benchmarks/libraries.py bert timm:vit_tiny_patch16_224

The models of transformers are small, with random configurations; those of timm have their own size and random
weights. So the cosines say whether a graph computes what it should, and little of what int8 costs a trained model.
Each model has a process of its own, and a line: the nodes of the simplified graph, how far it is from PyTorch, and the
cosines of int8, as its graph says and as OpenVINO runs it.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

TEXT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
WORDS = {"vocab_size": 200, "max_position_embeddings": 128}
IMAGE = {"image_size": 32, "patch_size": 8, "num_channels": 3}
ENCODERS = {"decoder_layers": 2, "encoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
SPEECH = {"conv_dim": (32,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4}
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any]]] = {  # architecture, what it reads, and its configuration
    "bert": ("BertModel", "text", TEXT | WORDS),
    "distilbert": ("DistilBertModel", "text", {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128} | WORDS),
    "roberta": ("RobertaModel", "text", TEXT | WORDS),
    "electra": ("ElectraModel", "text", TEXT | WORDS),
    "mpnet": ("MPNetModel", "text", TEXT | WORDS),
    "albert": ("AlbertModel", "text", TEXT | WORDS),
    "deberta-v2": ("DebertaV2Model", "text", TEXT | WORDS),
    "modernbert": (
        "ModernBertModel",
        "text",
        TEXT | WORDS | dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id"), 1),
    ),
    "t5": ("T5EncoderModel", "text", {"vocab_size": 200, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2}),
    "bart": ("BartModel", "text", {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128} | WORDS | ENCODERS),
    "gpt2": ("GPT2Model", "text", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 200}),
    "llama": ("LlamaModel", "text", TEXT | WORDS | {"num_key_value_heads": 2}),
    "qwen3": ("Qwen3Model", "text", TEXT | WORDS | {"num_key_value_heads": 2, "head_dim": 16}),
    "vit": ("ViTModel", "image", TEXT | IMAGE),
    "dinov2": ("Dinov2Model", "image", TEXT | IMAGE),
    "swin": ("SwinModel", "image", IMAGE | {"embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 2}),
    "clip-vision": ("CLIPVisionModel", "image", TEXT | IMAGE),
    "wav2vec2": ("Wav2Vec2Model", "sound", TEXT | SPEECH),
    "whisper": (
        "WhisperModel",
        "mel",
        ENCODERS | {"d_model": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128, "max_source_positions": 50}
        | {"vocab_size": 200, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    ),
}  # fmt: skip
TIMM = (
    "resnet18", "resnetv2_50x1_bit", "resnest14d", "seresnet18", "regnety_002", "efficientnet_lite0",
    "mobilenetv4_conv_small", "mobileone_s0", "ghostnet_100", "hardcorenas_a", "repvgg_a0", "convnext_atto",
    "convnextv2_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "cait_xxs24_224",
    "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_ns_224", "maxvit_pico_rw_256", "coat_tiny", "crossvit_tiny_240",
    "levit_128s", "efficientformer_l1", "efficientvit_b0", "fastvit_t8", "mobilevit_xxs", "edgenext_xx_small",
    "poolformer_s12", "mixer_s32_224", "gmlp_ti16_224", "resmlp_12_224", "convit_tiny", "pit_ti_224",
    "twins_svt_small", "xcit_nano_12_p16_224", "visformer_tiny", "volo_d1_224", "tinynet_e", "hgnetv2_b0", "dla34",
    "vgg11", "densenet121", "inception_next_atto", "repvit_m0_9", "tiny_vit_5m_224", "nextvit_small",
    "hiera_tiny_224", "eva02_tiny_patch14_224", "rdnet_tiny", "starnet_s1",
)  # fmt: skip
BATCH, LENGTH, SAMPLES = 2, 24, 16


def feeds_of(kind: str, count: int, seed: int, size: tuple[int, ...]) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    if kind == "text":
        lengths = rng.integers(6, LENGTH + 1, (count, 1))
        mask = (np.arange(LENGTH) < lengths).astype(np.int64)
        return {"input_ids": rng.integers(3, 200, (count, LENGTH)) * mask, "attention_mask": mask}
    name, shape = {
        "image": ("pixel_values", size),
        "sound": ("input_values", (4000,)),
        "mel": ("input_features", (80, 100)),
    }[kind]
    smooth = np.repeat(rng.normal(size=(count, *shape[:-1], -(-shape[-1] // 4))), 4, axis=-1)[..., : shape[-1]]
    return {name: (smooth + 0.3 * rng.normal(size=smooth.shape)).astype(np.float32)}


def model_of(name: str) -> tuple[Any, str, tuple[int, ...]]:
    import torch

    torch.manual_seed(0)
    if name.startswith("timm:"):
        import timm

        from enginery.core.params.model import ModelParams
        from enginery.model.from_timm import make_from_timm

        model = make_from_timm(ModelParams(source=name, arguments={}), 10)
        size = timm.data.resolve_data_config(model=model)["input_size"]
        return model, "image", size
    import transformers

    from enginery.model.from_transformers import make_from_transformers

    architecture, kind, config = TRANSFORMERS[name]
    model_type = getattr(transformers, architecture).config_class.model_type
    arguments = {"architecture": architecture, "pooling": None, "normalize": False}
    model = make_from_transformers(arguments | {"config": config | {"model_type": model_type}})
    return model, kind, (3, 32, 32)


def take(name: str) -> str:
    """Return the line of a model. The step that fails is named."""
    from enginery.accuracy.agreement import compare
    from enginery.core.params.build import Profile
    from enginery.core.params.calibration import CalibrationParams
    from enginery.engine.this_machine import find_cpu
    from enginery.graph.as_written import open_as_written, run_graph
    from enginery.graph.passes import rewrite_graph
    from enginery.graph.simplify import fold_constants, simplify_graph
    from enginery.model.export import export_model
    from enginery.model.source_model import run_model
    from enginery.quantization.calibration.measure import measure
    from enginery.quantization.calibration.thresholds import choose_amax
    from enginery.quantization.dialect import dialect_of
    from enginery.quantization.structure import nodes_beyond_int8
    from enginery.quantization.write_int8 import Range, write_int8

    doing, said = "make", ""
    try:
        model, kind, size = model_of(name)
        doing = "run"
        feeds = feeds_of(kind, BATCH, 0, size)
        wanted = run_model(model, feeds)
        doing = "export"
        sizes = {"batch": {"min": 1, "opt": BATCH, "max": 8}}
        axes = {0: "batch"} | ({1: "sequence"} if kind == "text" else {})
        more = {"axes": {"sequence": {"min": 8, "opt": LENGTH, "max": 64}}} if kind == "text" else {}
        exported = export_model(model, feeds, dict.fromkeys(feeds, axes), Profile.model_validate(sizes | more), 20)
        doing = "simplify"
        graph = rewrite_graph(fold_constants(simplify_graph(exported)))
        others = feeds_of(kind, 5, 1, size)
        exact = run_model(model, others)
        error = compare(exact, run_graph(open_as_written(graph), others)).relative
        said = f"{len(graph.graph.node)} nodes, error {error:.0e}"
        doing = "calibrate"
        batches = [feeds_of(kind, BATCH, 10 + n, size) for n in range(SAMPLES // BATCH)]
        histograms = measure(graph, batches, 2048)
        params = CalibrationParams(method="mse", percentile=99.99, bins=2048, batch=BATCH, file=None)
        amax = {tensor: choose_amax(one, params) for tensor, one in histograms.items()}
        ranges = {tensor: Range(histograms[tensor].lowest, value) for tensor, value in amax.items()}
        doing = "quantize"
        dialect = dialect_of("openvino", "cpu", find_cpu().capability)
        high = nodes_beyond_int8(graph, amax)
        quantized = write_int8(graph, ranges, set(high), dialect.largest_weight)
        doing = "int8 as written"
        got = compare(exact, run_graph(open_as_written(quantized), others))
        said += f", int8 cosine {got.cosine:.4f}"
        doing = "int8 in OpenVINO"
        said += f", in OpenVINO {compare(exact, in_openvino(quantized, others, list(wanted))).cosine:.4f}"
    except Exception as error:  # any error is what the line says
        why = " ".join(str(error).split())[:300] or type(error).__name__
        return f"{name}: {said + ', ' if said else ''}FAILS at {doing}: {why}"
    return f"{name}: {said}"


def in_openvino(graph: Any, feeds: dict[str, Any], names: list[str]) -> dict[str, Any]:
    import onnx
    import openvino

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        onnx.save(graph, file)
        # Convert first, as the pipeline does: compiled from the file, some quantized graphs are silently wrong.
        model = openvino.convert_model(str(file))
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        found = compiled(feeds)
        return {name: np.array(found[name]) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=[*TRANSFORMERS, *(f"timm:{name}" for name in TIMM)])
    parser.add_argument("--in-this-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in options.models:
        if options.in_this_process:
            print(take(name), flush=True)
            continue
        command = [sys.executable, __file__, name, "--in-this-process"]
        ran = subprocess.run(command, capture_output=True, text=True)
        lines = [line for line in ran.stdout.splitlines() if line.startswith(f"{name}: ")]
        print(lines[-1] if lines else f"{name}: FAILS with exit code {ran.returncode}: {ran.stderr[-300:]}", flush=True)


if __name__ == "__main__":
    main()
