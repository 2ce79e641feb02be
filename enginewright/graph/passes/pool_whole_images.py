import onnx_ir as ir

from enginewright.graph.passes.find import find_nodes

GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}


class PoolWholeImages(ir.passes.InPlacePass):
    """Let a pooling whose window is larger than the image pool the whole image, as it does where `ceil_mode` lets it.

    OpenVINO 2026.4 refuses such a window. EfficientNet of transformers has one of as many pixels as it has channels.
    """

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        found = [node for name in GLOBAL for node in find_nodes(model, name) if _reads_more_than_there_is(node)]
        for node in found:
            node.op_type = GLOBAL[node.op_type]
            node.attributes.clear()
        return ir.passes.PassResult(model, modified=bool(found))


def _reads_more_than_there_is(node: ir.Node) -> bool:
    settings = {name: attribute.value for name, attribute in node.attributes.items()}
    window, pads, dilations = (settings.get(name) or () for name in ("kernel_shape", "pads", "dilations"))
    if not settings.get("ceil_mode") or any(pads) or any(each > 1 for each in dilations) or len(node.outputs) > 1:
        return False
    image = node.inputs[0]
    axes = list(image.shape)[2:] if image is not None and image.shape is not None else []
    sizes = [size for size in axes if isinstance(size, int)]
    if len(sizes) != len(window):
        return False
    strides = settings.get("strides") or [1] * len(window)
    beyond = [length - size for length, size in zip(window, sizes, strict=True)]
    return any(beyond) and all(0 <= more < stride for more, stride in zip(beyond, strides, strict=True))
