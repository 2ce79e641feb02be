"""`torch_tensorrt`: the backend that the real package adds to torch.compile, with PyTorch in TensorRT's place.

The backend's names, its settings and what it does with a part that cannot be built are those of version 2.14.0. The
real one ignores a setting that it does not know; this one refuses it.
"""

import logging
from collections.abc import Sequence

import torch
from torch._dynamo import register_backend

from simulated import failing

__version__ = "2.14.0"
SETTINGS = {"disable_tf32": False, "pass_through_build_failures": False, "min_block_size": 5}
compiled: list[dict] = []  # the settings of each graph

if failing("other_torch"):  # what PyTorch 2.15 lacks of what this version's library was linked with
    raise OSError("libtorchtrt.so: undefined symbol: _ZN3c1015report_overflowEPKc")


@register_backend(name="tensorrt")
@register_backend(name="torch_tensorrt")
def torch_tensorrt_backend(gm: torch.fx.GraphModule, sample_inputs: Sequence, **kwargs):
    chosen = kwargs.get("options", kwargs)
    if unknown := chosen.keys() - SETTINGS:
        raise TypeError(f"CompilationSettings has no {', '.join(sorted(unknown))}")
    compiled.append(SETTINGS | chosen)
    if failing("not_converted"):
        if compiled[-1]["pass_through_build_failures"]:
            raise RuntimeError("Building serialized network failed in TensorRT")
        logging.getLogger(__name__).warning("TRT conversion failed on the subgraph. See trace above.")
    return gm
