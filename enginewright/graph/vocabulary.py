"""Refuse a tokenizer whose vocabulary is not that of the model: each text would get the vectors of other words."""

from collections.abc import Iterator

import onnx

from enginewright.core.errors import EnginewrightError
from enginewright.core.params.text import IDS, MEANINGS
from enginewright.data.manifest import PreparedTexts

PASSED_ON = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
MOST_SPARE = 0.1  # of the rows: some models have a few more than tokens, as kernels are faster for round numbers
FEW = 128  # rows, which small tables may have to spare


def require_fitting_vocabulary(model: onnx.ModelProto, texts: PreparedTexts | None) -> None:
    for rows in embedded_rows(model) if texts else ():
        assert texts, "the loop looked"
        known, how = texts.vocabulary, texts.how
        if known > rows:
            raise EnginewrightError(
                f"samples.text.tokenizer: {how.tokenizer} knows {known} tokens, and the model's embedding has "
                f"{rows} rows: it is the tokenizer of another model"
            )
        if rows - known > max(FEW, MOST_SPARE * rows) and not how.spare_rows:
            raise EnginewrightError(
                f"samples.text.tokenizer: {how.tokenizer} knows {known} tokens, and the model's embedding has "
                f"{rows} rows: it is likely the tokenizer of another model; if not, set samples.text.spare_rows: true"
            )


def embedded_rows(model: onnx.ModelProto) -> Iterator[int]:
    """Yield how many rows each table has in which a graph looks token ids up."""
    tables = {tensor.name: tensor.dims[0] for tensor in model.graph.initializer if len(tensor.dims) == 2}
    ids = {tensor.name for tensor in model.graph.input if MEANINGS.get(tensor.name) == IDS}
    for node in model.graph.node:
        if node.op_type in PASSED_ON and node.input[0] in ids:
            ids.update(node.output)
        elif node.op_type == "Gather" and node.input[0] in tables and node.input[1] in ids:
            yield tables[node.input[0]]
