"""Take the pictures of the example again: parts of reports/report.html, and the graph as `dvc dag` has it.

For the one of a run keep what it prints: `script -qc "make repro" run.log`, then `python docs/pictures.py run.log`.
Chromium and its driver must be there. The other pictures are of another report, and of scripts in benchmarks/.
"""

import base64
import io
import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import graph
import matplotlib.pyplot as plt
import networkx
from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME
from rich.text import Text
from selenium import webdriver

DOCS = Path(__file__).parent
REPORT = DOCS.parent / "reports/report.html"
WIDTH, MARGIN, COLORS = 1200, 16, 64  # so few colours that no picture takes 150 kB
PARTS = {"report": ("body", 860), "speed": ("#tradeoff", 515), "time": ("#layers", 760), "errors": ("#errors", 540)}
PART_OF_RUN = re.compile(r"Running stage 'reference'.*?(?=\s*Running stage 'convert)", re.DOTALL)
STYLE = "font: 15px/1.4 DejaVu Sans Mono; margin: 0; padding: 24px; width: 1152px; white-space: pre-wrap"
TERMINAL = f'<body style="margin: 0"><pre style="{STYLE}">{{code}}</pre>'


def picture_of(browser: webdriver.Chrome, page: Path, part: str, most: int) -> Image.Image:
    """Take a part of a page, from its top, and so many pixels of it at most."""
    browser.get(page.resolve().as_uri())
    browser.execute_script(
        "document.querySelectorAll('#layers details').forEach((each, at, all) => each.open = at == all.length - 1)"
    )
    find = "const box = document.querySelector(arguments[0]).getBoundingClientRect(); return [box.top, box.height]"
    top, height = browser.execute_script(find, part)
    clip = {"x": 0, "y": max(0, top - MARGIN), "width": WIDTH, "height": min(most, height + MARGIN), "scale": 1}
    taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    return Image.open(io.BytesIO(base64.b64decode(taken["data"])))


def terminal(log: Path) -> str:
    """Return a page of what some stages print, in the colours of the terminal."""
    (part,) = PART_OF_RUN.findall(log.read_text(encoding="utf-8").replace("\r\n", "\n"))
    console = Console(record=True, width=10_000, file=io.StringIO())
    console.print(Text.from_ansi(part))
    return console.export_html(theme=DEFAULT_TERMINAL_THEME, inline_styles=True, code_format=TERMINAL)


def drawn_graph() -> Image.Image:
    """Draw dvc.yaml's graph from left to right, as `make graph` thins it out."""
    arrows = networkx.DiGraph(re.findall(r"(\w+) --> (\w+)", graph.drawing()))
    places = {
        name: (column, len(names) / 2 - row)
        for column, names in enumerate(networkx.topological_generations(arrows))
        for row, name in enumerate(sorted(names))
    }
    figure, axes = plt.subplots(figsize=(12, 2.4), dpi=100, layout="constrained")
    box = {"boxstyle": "round,pad=0.4", "facecolor": "#f5f3ee", "edgecolor": "#0b6b74"}
    networkx.draw_networkx_edges(arrows, places, ax=axes, edge_color="#62666c", arrows=False)
    networkx.draw_networkx_labels(arrows, places, ax=axes, font_size=9, bbox=box)
    axes.axis("off")
    drawn = io.BytesIO()
    figure.savefig(drawn)
    return Image.open(drawn)


def main(logs: list[str]) -> None:
    options = webdriver.ChromeOptions()
    for flag in ("headless=new", "no-sandbox", "hide-scrollbars", f"window-size={WIDTH},900"):
        options.add_argument(f"--{flag}")
    made = {"graph": drawn_graph()}
    driver = webdriver.ChromeService(shutil.which("chromedriver"))  # else Selenium looks for one in the network
    with webdriver.Chrome(options=options, service=driver) as browser, TemporaryDirectory() as folder:
        made |= {name: picture_of(browser, REPORT, *part) for name, part in PARTS.items()}
        for log in logs:
            (page := Path(folder) / "run.html").write_text(terminal(Path(log)), encoding="utf-8")
            made["run"] = picture_of(browser, page, "pre", 2000)
    for name, picture in made.items():
        picture.convert("RGB").quantize(COLORS).save(DOCS / f"pictures/{name}.png", optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
