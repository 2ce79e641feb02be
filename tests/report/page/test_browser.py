"""The report page in a real browser, opened from disk: pictures, keyboard, phone, print."""

import os
import shutil
from dataclasses import replace

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from support.pages import HOSTILE, nights_of, page_of_nights

DESK, PHONE = (1200, 900), (380, 800)
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-dev-shm-usage",
)


def installed(*names):
    return next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="module")
def browser():
    chromium, driver = installed("chromium", "chromium-browser", "google-chrome"), installed("chromedriver")
    if not (chromium and driver):
        reason = "the page is not tested in a browser: `apt-get install chromium chromium-driver` as root"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def visit(browser, usual, tmp_path):
    """Open the page on a screen of this size, in a system that is set to light or dark."""

    def visit(size=DESK, scheme="light", found=None):
        file = tmp_path / "report.html"
        file.write_text(page_of_nights(found or usual, nights_of([4.0, 3.0, 4.0])), encoding="utf-8")
        screen = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        setting = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": setting})
        browser.get(file.as_uri())
        return browser

    yield visit
    browser.execute_script("localStorage.clear()")
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def open_all(page):
    page.execute_script("for (const folded of document.querySelectorAll('details')) folded.open = true")


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_every_picture_is_drawn_within_the_page(visit, size):
    page = visit(size)
    pictures = [picture for picture in page.find_elements(By.CSS_SELECTOR, ".chart") if picture.is_displayed()]
    assert len(pictures) > 8
    for picture in pictures:
        assert picture.size["width"] > 200
        assert picture.size["height"] > 80
        name = picture.accessible_name
        assert name
        marks = page.execute_script(
            "return [...arguments[0].querySelectorAll('rect, circle, path, line.curve')].filter((mark) => {"
            "  const box = mark.getBoundingClientRect(); return box.width + box.height > 1; }).length",
            picture,
        )
        assert marks > 0, name


@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_no_text_of_a_picture_leaves_the_screen_or_shrinks(visit, size):
    page = visit(size)
    texts = page.execute_script(
        "return [...document.querySelectorAll('.chart text')].filter((text) => text.checkVisibility()).map((text) => {"
        "  const box = text.getBoundingClientRect();"
        "  return [text.textContent, box.left, box.right, parseFloat(getComputedStyle(text).fontSize)]; })"
    )
    assert len(texts) > 100
    assert [text for text in texts if text[1] < 0 or text[2] > size[0] or text[3] < 11] == []


@pytest.mark.parametrize("width", [320, 380, 768, 1200])
def test_the_page_never_scrolls_sideways(visit, width):
    page = visit((width, 800))
    open_all(page)
    beyond = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
    assert page.execute_script(beyond) == 0


COVERED_DOTS = """
const meet = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
return [...document.querySelectorAll("#tradeoff .chart")].flatMap((chart) => {
  const dots = [...chart.querySelectorAll("circle")], labels = [...chart.querySelectorAll("text.figure")];
  const box = (mark) => mark.getBoundingClientRect();
  const on = labels.flatMap((label) => dots.filter((dot) => meet(box(label), box(dot))).map(() => label.textContent));
  const met = labels.flatMap((label, n) => labels.slice(n + 1).filter((other) => meet(box(label), box(other))));
  return [...on, ...met.map((label) => label.textContent)];
});
"""


@pytest.mark.parametrize("width", [320, 380, 768, 1200])
def test_no_label_of_the_tradeoff_lies_on_a_dot_or_a_label(visit, crowded, width):
    page = visit((width, 800), found=crowded)
    assert len(page.find_elements(By.CSS_SELECTOR, "#tradeoff circle")) == 10
    assert page.execute_script(COVERED_DOTS) == []


TICKS_AND_BARS = """
const box = (mark) => mark.getBoundingClientRect(), seen = (mark) => mark.checkVisibility();
return [...document.querySelectorAll("#throughput .chart")].map((chart) => {
  const ticks = [...chart.querySelectorAll("text.tick.middle")].filter(seen).map(box);
  const figures = [...chart.querySelectorAll("text.figure")].filter(seen);
  const right = Math.max(...[...chart.querySelectorAll("text")].filter(seen).map((text) => box(text).right));
  return {
    bar: Math.max(...[...chart.querySelectorAll("rect")].map((bar) => box(bar).width)),
    gap: Math.min(...ticks.slice(1).map((tick, n) => tick.left - ticks[n].right)),
    ticks: ticks.length, figures: figures.map((figure) => figure.textContent), right: right,
  };
});
"""
LONG = "cuda_graph+channels_last+fp16"


def with_three_counts_of_requests(entry):
    """Return evidence as on an H200: figures of many digits, and a baseline with a long name."""
    benchmark = entry.benchmark
    measured = [
        one.model_copy(
            update={
                "requests": requests,
                "images_per_second": 40 * entry.latency(one.batch).images_per_second * requests,
            }
        )
        for one in benchmark.throughput
        if one.requests == 1
        for requests in (1, 2, 4)
    ]
    latencies = [
        one.model_copy(
            update={
                "images_per_second": 40 * one.images_per_second,
                "contender": LONG if one.contender == "eager" else one.contender,
            }
        )
        for one in benchmark.latencies
    ]
    ratios = tuple(one.model_copy(update={"baseline": LONG}) for one in benchmark.ratios)
    changes = {"throughput": tuple(measured), "latencies": tuple(latencies), "ratios": ratios}
    return replace(entry, benchmark=benchmark.model_copy(update=changes))


@pytest.mark.parametrize("width", [320, 360, 390, 1000, 1200])
def test_bars_of_three_counts_of_requests_have_room(visit, evidence, findings, width):
    speeds = {"fp32": 1.0, "int8": 4.0}
    found = findings(*(with_three_counts_of_requests(evidence(name, (at, at, at))) for name, at in speeds.items()))
    drawn = visit((width, 800), found=found).execute_script(TICKS_AND_BARS)
    assert len(drawn) == 2
    for chart in drawn:
        assert chart["bar"] > 80
        assert chart["ticks"] > 1
        assert chart["gap"] > 3, "axis numbers collide"
        assert chart["right"] <= width
        assert chart["figures"][-1] == "80,000"


LEFT_EDGES = """
return [...document.querySelectorAll(".scroll")].map((box) => {
  const second = box.querySelector("tbody td"), first = box.querySelector("tbody th");
  const within = box.getBoundingClientRect();
  const lines = [...box.querySelectorAll("tbody th")].map((name) => name.getBoundingClientRect().height);
  box.scrollLeft = 60;
  const kept = first.getBoundingClientRect().left - within.left;
  box.scrollLeft = 0;
  return [box.ariaLabel, second.getBoundingClientRect().left - within.left, within.width, kept, Math.max(...lines)];
});
"""


def test_on_a_phone_every_table_shows_its_second_column_and_keeps_its_first(visit):
    page = visit(PHONE)
    open_all(page)
    tables = page.execute_script(LEFT_EDGES)
    assert len(tables) > 10
    for caption, second, width, kept, tallest in tables:
        assert second < 0.6 * width, caption
        assert kept == 0, caption
        assert tallest < 200, f"{caption}: a name is broken at every letter"


def column(page, number):
    rows = page.find_elements(By.CSS_SELECTOR, "#summary table tbody tr")
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[number].text for row in rows]


def test_a_table_is_sorted_by_keyboard(visit):
    page = visit()
    headers = page.find_elements(By.CSS_SELECTOR, "#summary thead th")
    speed, verdict = headers[2], headers[1]
    button = speed.find_element(By.TAG_NAME, "button")
    button.send_keys(Keys.ENTER)
    assert [cell.split()[0] for cell in column(page, 2)] == ["1.00", "1.00", "4.00"]
    button.send_keys(Keys.ENTER)
    assert [cell.split()[0] for cell in column(page, 2)] == ["4.00", "1.00", "1.00"]
    assert speed.get_attribute("aria-sort") == "descending"
    verdict.find_element(By.TAG_NAME, "button").send_keys(Keys.SPACE)
    assert column(page, 1) == ["passed", "passed", "ran as fp32"]
    assert (verdict.get_attribute("aria-sort"), speed.get_attribute("aria-sort")) == ("ascending", "none")


def test_powers_of_ten_are_sorted_as_numbers(visit):
    page = visit()
    error = page.find_elements(By.CSS_SELECTOR, "#summary thead th")[6]
    error.find_element(By.TAG_NAME, "button").click()
    assert column(page, 6) == ["3.0e-07", "1.0e-04", "5.0e-03"]


def test_sizes_are_sorted_whatever_their_unit(visit, usual):
    sizes = (1_500_000, 700_000, 40_000)
    other = [
        replace(entry, engine=entry.engine.model_copy(update={"bytes": size}))
        for entry, size in zip(usual.precisions, sizes, strict=True)
    ]
    page = visit(found=replace(usual, precisions=tuple(other)))
    size = page.find_elements(By.CSS_SELECTOR, "#summary thead th")[7]
    size.find_element(By.TAG_NAME, "button").click()
    assert column(page, 7) == ["40.0 kB", "700.0 kB", "1.5 MB"]


def test_versions_are_sorted_part_by_part(visit):
    page = visit()
    open_all(page)
    table = next(
        table
        for table in page.find_elements(By.CSS_SELECTOR, "#reproduce table")
        if table.find_element(By.TAG_NAME, "caption").text == "Tools that shape the graphs"
    )
    table.find_elements(By.CSS_SELECTOR, "thead button")[1].send_keys(Keys.ENTER)
    assert [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "td")] == ["1.9.2", "1.9.10", "1.23.2"]


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit):
    page = visit()
    reached = []
    for _ in range(12):
        page.switch_to.active_element.send_keys(Keys.TAB)
        focused = page.switch_to.active_element
        reached.append(focused.text.replace("\N{NO-BREAK SPACE}", " ").split("\n")[0])
        assert focused.value_of_css_property("outline-style") == "solid", reached
    assert reached[:2] == ["Skip to the verdict", "Dark"]
    assert any(text.startswith("precision") for text in reached)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_until_the_button_is_pressed(visit, scheme):
    page = visit(scheme=scheme)

    def is_dark():
        return sum(map(int, colour(page, "body", "background-color"))) < 300

    assert is_dark() == (scheme == "dark")
    toggle = page.find_element(By.ID, "theme")
    assert toggle.text == ("Light" if scheme == "dark" else "Dark")
    toggle.send_keys(Keys.ENTER)
    assert is_dark() == (scheme == "light")
    page.refresh()
    assert is_dark() == (scheme == "light")


def colour(page, selector, name):
    value = page.find_element(By.CSS_SELECTOR, selector).value_of_css_property(name)
    return value[value.index("(") + 1 : value.index(")")].split(",")[:3]


def luminance(rgb):
    shares = [int(part) / 255 for part in rgb]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_the_page(visit, scheme):
    """By as much as WCAG asks of small text."""
    page = visit(scheme=scheme)
    behind = luminance(colour(page, "body", "background-color"))
    texts = {"body": "color", ".reading": "color", "h1": "color", ".chart .tick.middle": "fill", "nav a": "color"}
    for selector, name in texts.items():
        darker, lighter = sorted((luminance(colour(page, selector, name)), behind))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, selector


def test_on_paper_nothing_is_folded_away(visit):
    page = visit()
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert page.execute_script("return [...document.querySelectorAll('details')].every((folded) => folded.open)")


def test_hostile_names_run_nothing(visit, findings, evidence):
    broken = (HOSTILE, "<img src=x onerror=document.title='run'>")
    page = visit(found=findings(evidence("int8", (4.0, 3.9, 4.1), broken=broken)))
    assert page.title == "Ship none of them · Enginewright"
    assert HOSTILE in page.find_element(By.CSS_SELECTOR, "#failures").text
