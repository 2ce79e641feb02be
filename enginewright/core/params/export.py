from typing import Annotated, Any

from pydantic import BeforeValidator

from enginewright.core.params.section import Section

OPSETS = range(18, 25)


def _possible_opset(given: Any) -> Any:
    if not isinstance(given, int) or isinstance(given, bool) or given not in OPSETS:
        raise ValueError(
            f"write a whole number from {OPSETS[0]} to {OPSETS[-1]}, not {given!r}: "
            "PyTorch's exporter writes none older, and TensorRT 10 supports none newer"
        )
    return given


class ExportParams(Section, place="export"):
    opset: Annotated[int, BeforeValidator(_possible_opset)]
