"""What a quantized graph holds."""

from onnx import numpy_helper

from enginewright.core.params.precisions import Keep

KEEP_NOTHING = Keep(op_types=(), nodes=())
KEEPS_CONVOLUTIONS = {
    "types": Keep(op_types=("Conv",), nodes=()),
    "names": Keep(op_types=(), nodes=("conv1", "conv2")),
    "pattern": Keep(op_types=(), nodes=("conv.*",)),
}


def constants(model):
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def quantized_inputs(model):
    """Return the tensors behind the inputs of each operator whose first input comes out of a DequantizeLinear."""
    makers = {name: node for node in model.graph.node for name in node.output}

    def origin(name):
        dequantize = makers.get(name)
        if dequantize is None or dequantize.op_type != "DequantizeLinear":
            return None
        return makers[dequantize.input[0]].input[0]

    return {node.name: [origin(name) for name in node.input[:2]] for node in model.graph.node if origin(node.input[0])}
