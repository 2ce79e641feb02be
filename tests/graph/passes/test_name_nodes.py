from support.pass_checks import apply_pass, model_of_text

from enginewright.graph.passes import name_nodes


def test_each_node_gets_a_name_of_its_own():
    model = model_of_text("g (float[n,4] input) => (float[n,4] y) { a = Relu (input) b = Relu (a) y = Add (a, b) }")
    for node, name in zip(model.graph.node, ("", "a", ""), strict=True):
        node.name = name
    assert [node.name for node in apply_pass(name_nodes, model).graph.node] == ["a.", "a", "y"]
