"""Draw the graph of dvc.yaml into docs/explanation/architecture.md, as `dvc dag` sees it: `make graph`."""

import re
import subprocess
from pathlib import Path

import networkx

DOCUMENT = Path(__file__).parent / "explanation/architecture.md"
BLOCK = re.compile(r"```mermaid\n.*?```\n", re.DOTALL)


def drawing() -> str:
    """One node for the stages of all precisions, and no arrow that others imply: each stage needs `machine`."""
    command = ["dvc", "dag", "--mermaid", "--collapse-foreach-matrix"]
    said = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True).stdout
    names = dict(re.findall(r'(node\d+)\["(?:machine/dvc.yaml:)?([^"]+)"\]', said))
    graph = networkx.DiGraph((names[start], names[end]) for start, end in re.findall(r"(node\d+)-->(node\d+)", said))
    arrows = sorted(networkx.transitive_reduction(graph).edges)
    return "\n".join(["```mermaid", "flowchart LR", *(f"  {start} --> {end}" for start, end in arrows), "```", ""])


def with_drawing(text: str) -> str:
    return BLOCK.sub(lambda _: drawing(), text, count=1)


if __name__ == "__main__":
    DOCUMENT.write_text(with_drawing(DOCUMENT.read_text()))
