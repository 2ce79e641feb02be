"""Small graphs, each with a pattern of a family of networks that NVIDIA's rules on Q/DQ nodes speak of."""

import re

import numpy as np

from support.pass_checks import model_of_text

IMAGE, TOKENS = "float[batch,32,8,8] x", "float[batch,32,32] x"
SQUARE = "<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
DEPTHWISE = "<group = 32, kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
# A block that reads %(x)s and makes %(s)s, with tensors that end in a number.
CONVNEXT = f"""
    d%(n)d = Conv {DEPTHWISE} (%(x)s, k%(n)d) t%(n)d = Transpose <perm = [0, 2, 3, 1]> (d%(n)d)
    l%(n)d = LayerNormalization (t%(n)d, one, nil) u%(n)d = MatMul (l%(n)d, m1) g%(n)d = Gelu (u%(n)d)
    v%(n)d = MatMul (g%(n)d, m2) b%(n)d = Transpose <perm = [0, 3, 1, 2]> (v%(n)d) z%(n)d = Mul (b%(n)d, layer)
    %(s)s = Add (z%(n)d, %(x)s)
"""

# Nodes between the input x and the output y.
PATTERNS = {
    "a residual sum and a pool (ResNet)": (
        IMAGE,
        f"""a = Conv {SQUARE} (x, c1) b = Relu (a) d = Conv {SQUARE} (b, c2) e = Conv (x, w1) s = Add (d, e)
        r = Relu (s) p = MaxPool <kernel_shape = [2, 2]> (r) y = Conv (p, w2)""",
    ),
    "SiLU, squeeze and excitation (EfficientNet)": (
        IMAGE,
        f"""a = Conv (x, w1) as = Sigmoid (a) b = Mul (a, as)
        d = Conv {DEPTHWISE} (b, k1) ds = Sigmoid (d) e = Mul (d, ds)
        m = ReduceMean <keepdims = 1> (e, pixels) f = Conv (m, w2) fs = Sigmoid (f) g = Mul (f, fs) h = Conv (g, w3)
        gate = Sigmoid (h) i = Mul (gate, e) j = Conv (i, w4) s = Add (j, x) y = Conv (s, w5)""",
    ),
    "HardSwish (MobileNetV3)": (
        IMAGE,
        f"""a = Conv (x, w1) b = HardSwish (a) d = Conv {DEPTHWISE} (b, k1) e = HardSwish (d) f = Conv (e, w2)
        s = Add (f, x) y = Conv (s, w3)""",
    ),
    "Concat (DenseNet)": (
        IMAGE,
        f"""z = MaxPool <kernel_shape = [1, 1]> (x) a = BatchNormalization (z, one, nil, nil, one) b = Relu (a)
        d = Conv {SQUARE} (b, c1) e = Concat <axis = 1> (z, d) f = BatchNormalization (e, ones, nils, nils, ones)
        g = Relu (f) h = Conv (g, v1) i = Concat <axis = 1> (z, h)
        j = BatchNormalization (i, ones, nils, nils, ones) l = Relu (j) y = Conv (l, v2)""",
    ),
    "LayerNorm, GELU and a scaled branch (ConvNeXt)": (
        IMAGE,
        f"""x0 = Conv (x, w1) {CONVNEXT % {"n": 1, "x": "x0", "s": "s1"}} {CONVNEXT % {"n": 2, "x": "s1", "s": "s2"}}
        p = ReduceMean <keepdims = 0> (s2, pixels) y = Gemm (p, m3)""",
    ),
    "attention, LayerNorm and GELU (ViT, Swin)": (
        TOKENS,
        """n = LayerNormalization (x, one, nil)
        qm = MatMul (n, m1) qr = Reshape (qm, heads) q = Transpose <perm = [0, 2, 1, 3]> (qr) qs = Mul (q, quarter)
        km = MatMul (n, m2) kr = Reshape (km, heads) k = Transpose <perm = [0, 2, 3, 1]> (kr)
        vm = MatMul (n, m3) vr = Reshape (vm, heads) v = Transpose <perm = [0, 2, 1, 3]> (vr)
        a = MatMul (qs, k) p = Softmax (a) o = MatMul (p, v) t = Transpose <perm = [0, 2, 1, 3]> (o)
        f = Reshape (t, tokens) u = MatMul (f, m4) ub = Add (u, one) s = Add (ub, x)
        l = LayerNormalization (s, one, nil) g = MatMul (l, m5) gb = Add (g, one) h = Gelu (gb)
        i = MatMul (h, m6) ib = Add (i, one) y = Add (ib, s)""",
    ),
}
# Their names end in a number.
WEIGHTS = {"w": (32, 32, 1, 1), "v": (32, 64, 1, 1), "c": (32, 32, 3, 3), "k": (32, 1, 3, 3), "m": (32, 32)}
CONSTANTS = {
    "pixels": np.array([2, 3]), "heads": np.array([0, 32, 2, 16]), "tokens": np.array([0, 32, 32]),
    "quarter": np.float32(0.25), "layer": np.full((32, 1, 1), 0.5, np.float32),
    "one": np.ones(32, np.float32), "nil": np.zeros(32, np.float32),
    "ones": np.ones(64, np.float32), "nils": np.zeros(64, np.float32),
}  # fmt: skip


def pattern(name):
    """Return the graph of a pattern, whose nodes have the names of their outputs."""
    given, nodes = PATTERNS[name]
    random, constants = np.random.default_rng(0), {}
    made = set(re.findall(r"(\w+) = [A-Z]", nodes))
    for word in sorted(set(re.findall(r"(\w+)(?=[,)])", nodes)) - made - {"x"}):
        if word in CONSTANTS:
            constants[word] = CONSTANTS[word]
        elif word[0] in WEIGHTS:
            constants[word] = random.normal(0, 0.2, WEIGHTS[word[0]]).astype(np.float32)
    model = model_of_text(f"g ({given}) => (float[] y) {{ {nodes} }}", constants)
    for node in model.graph.node:
        node.name = node.output[0]
    return model
