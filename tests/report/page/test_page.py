"""The report page as text: what it says, whatever the pipeline measured. test_browser.py opens it."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest
from support.findings import by_itself, on_gpu, paced, spread_over, unlabelled
from support.pages import HOSTILE, Reader, background_of, nights_of, page_of, page_of_nights
from support.paths import ROOT

from enginewright.core.params.all import Params
from enginewright.engine.record import Layer, LayerTime
from enginewright.engine.tools import Tools
from enginewright.report.page.pictures import MOST_NIGHTS
from enginewright.report.page.render import breakable, with_code


def test_the_first_screen_says_what_to_ship_and_why(usual):
    page = Reader(page_of(usual))
    assert "Ship int8 int8 is 4.00 times as fast as PyTorch eager at batch 8, its accuracy is 97.53% where" in page.text
    assert "It is the fastest of the 2 precisions that may be shipped, 4.00 times (" in page.text
    assert f"Measured on {usual.machine.device_name}" in page.text
    assert "fp16 ran as fp32: OpenVINO executed none of it in fp16 here." in page.text


def test_the_page_needs_nothing_but_itself_and_does_not_change_by_itself(usual):
    page = page_of(usual)
    assert page == page_of(usual)
    assert "://" not in page
    assert not re.search(r'<(?:img|link|iframe|object)\b|\bsrc=|href="(?!#)|@import|url\(', page)
    assert len(page) < 1_000_000
    assert page.count("<script") == 1


def test_the_script_is_the_one_that_the_policy_lets_run(usual):
    page = page_of(usual)
    assert "default-src 'none'" in page
    script = page.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page


def test_every_picture_says_what_it_shows(usual):
    page = page_of(usual)
    drawn = re.findall(r"<svg class=\"chart\"(.*?)>", page)
    assert len(drawn) > 7
    for attributes in drawn:
        assert 'role="img"' in attributes
        title, description = re.search(r'aria-labelledby="(\S+) (\S+)"', attributes).groups()
        assert re.search(rf'<title id="{title}">[^<]+</title><desc id="{description}">[^<]+</desc>', page)
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def drawn_in(page, key):
    return page.partition(f'id="{key}-title"')[2].partition("</svg>")[0]


def test_nights_are_drawn_as_the_other_pictures_are(usual):
    """They have the colours of the page, light or dark."""
    page = page_of_nights(
        usual,
        nights_of([4.0, 2.0, 3.0, 4.0], verdicts=["first", "regression", "not comparable", "no change"]),
        nights_of([1.0, 1.0, 1.0, 1.0], precision="fp32", error=0.0),
        nights_of([9.0], setting="resnet18 on another", verdicts=["gate"]),
    )
    speed = drawn_in(page, "nights-0-speed")
    place = r'"([\d.]+)%?"'
    curves = re.findall(rf'<line x1={place} y1={place} x2={place} y2={place} class="curve (\w+)"', speed)
    assert [(*map(float, places), look) for *places, look in curves[:3]] == [
        (0.0, 0.0, 33.33, 130.0, "strong"),
        (33.33, 130.0, 66.67, 65.0, "strong"),
        (66.67, 65.0, 100.0, 0.0, "strong"),
    ]
    assert [look for *_, look in curves[3:]] == ["plain"] * 3
    assert re.findall(r'class="dot (\w+)"', speed) == ["failed", "hollow", "strong", "plain"]
    assert "<title>2026-11-21: 2.00, regression</title>" in speed
    assert re.findall(r">(2026-[\d-]+)<", speed) == ["2026-11-20", "2026-11-21", "2026-11-23"]
    assert re.findall(r'class="dot (\w+)"', drawn_in(page, "nights-1-speed")) == ["failed"]
    assert "The last night of each: int8 0.0100, no change; fp32 0, no change." in drawn_in(page, "nights-0-error")
    assert Reader(page).tags["img"] == 0
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))


def test_only_the_latest_nights_of_a_year_are_drawn(usual):
    year = [nights_of([4.0] * 365, precision=name) for name in ("fp32", "fp16", "bf16", "int8")]
    page = page_of_nights(usual, *year)
    assert len(page) < 1_000_000
    assert drawn_in(page, "nights-0-speed").count('class="curve ') == 4 * (MOST_NIGHTS - 1)


@pytest.mark.parametrize("nights", [[], [4.0]], ids=["no nights", "nights"])
def test_the_contents_are_in_the_order_of_the_sections(usual, nights):
    page = page_of_nights(usual, nights_of(nights)) if nights else page_of(usual)
    listed = re.findall(r'<a href="#([\w-]+)">', page.partition("<nav")[2].partition("</nav>")[0])
    assert ["summary", *listed] == re.findall(r'<section id="([\w-]+)"', page)


def test_the_hashes_are_of_the_validation_set_too(usual):
    assert f"validation samples {'e' * 64}" in Reader(page_of(usual)).text


def test_the_page_explains_why_its_commit_may_not_be_found(usual):
    assert "If the first command prints nothing, this page was never committed" in Reader(page_of(usual)).text


def test_without_nights_the_page_has_no_such_section(usual):
    assert "Over the nights" not in page_of(usual)


def test_names_never_become_markup(machine, findings, evidence):
    entry = evidence("int8", (4.0, 3.9, 4.1), broken=(f"cosine of {HOSTILE}",))
    layers = tuple(
        Layer(name=HOSTILE, kind=HOSTILE, precision=HOSTILE, computes=computes) for computes in (True, False)
    )
    times = tuple(LayerTime(**layer.model_dump(), milliseconds=1) for layer in layers)
    engine = entry.engine.model_copy(
        update={"class_names": (HOSTILE, "b"), "layers": layers, "files": {HOSTILE: "0" * 64}}
    )
    entry = replace(entry, engine=engine, trace=entry.trace.model_copy(update={"layers": times}))
    disguised = replace(findings(entry), machine=machine.model_copy(update={"device_name": HOSTILE}))
    params = Params.read(ROOT / "params.yaml")
    samples = params.samples.model_copy(update={"source": HOSTILE})
    base = background_of()
    background = replace(
        base,
        params=params.model_copy(update={"samples": samples}),
        calibration=base.calibration.model_copy(update={"method": HOSTILE}),
        tools=Tools(versions={HOSTILE: HOSTILE}),
        simplification=base.simplification.model_copy(update={"nodes_before": {HOSTILE: 3}}),
    )
    page = page_of(disguised, background)
    read = Reader(page)
    assert read.tags["script"] == 1
    assert read.tags["img"] == 0
    assert "<script>alert" not in page
    assert read.text.count("<script>alert(1)</script>") > 10


def test_without_labels_accuracy_is_not_measured(findings, evidence):
    found = findings(
        *(unlabelled(evidence(name, (ratio, 0.99 * ratio, 1.01 * ratio))) for name, ratio in (("fp32", 1), ("int8", 4)))
    )
    page = Reader(page_of(found))
    assert "its accuracy is not measured (no labels or no scores)," in page.text
    assert "same answer as PyTorch, % of images" in page.text
    assert "None" not in page.text
    assert "0.00%" not in page.text


def test_a_failure_is_named_with_its_reason(findings, evidence):
    found = findings(evidence("fp32", (1.0, 0.98, 1.02)), evidence("int8", broken=("cosine 0.9 is below 0.99",)))
    page = Reader(page_of(found))
    assert "Ship fp32" in page.text
    assert "It is the only precision that stayed within its thresholds and did not run as another type." in page.text
    assert page.text.count("int8 failed: cosine 0.9 is below 0.99; the precision is to blame.") == 2
    assert "Nothing: every" not in page.text


def test_where_all_failed_none_is_shipped(findings, evidence):
    page = Reader(page_of(findings(evidence("fp32", broken=("a",)), evidence("int8", broken=("b",)))))
    assert "Ship none of them Each precision broke a threshold or ran as another type." in page.text
    assert "Ship none of them · Enginewright" in page.text
    assert "Next: change what broke a threshold in params.yaml" in page.text
    assert "int8 failed: b" in page.text


def test_a_doubtful_choice_must_be_measured_again(findings, evidence):
    page = Reader(page_of(findings(evidence("fp32", (3.0, 2.0, 4.0)), evidence("int8", (4.0, 3.9, 4.1)))))
    assert "Measure again int8 and fp32 cannot be told apart on this machine today: int8 0.97" in page.text
    assert "then dvc repro --force --single-item race && dvc repro ." in page.text
    assert "Ship int8" not in page.text


def test_the_row_to_ship_stands_out_and_a_precision_that_ran_as_another_type_is_faint(usual, findings, evidence):
    page = page_of(usual)
    assert re.findall(r'<tr class="strong">\n<th scope="row"><span>(\w+)</span>', page) == ["int8"]
    assert '<td class="faint">ran as fp32</td>' in page
    none = page_of(findings(evidence("fp32", broken=("a",))))
    assert '<tr class="strong">' not in none
    assert '<td class="bad">failed</td>' in none


def test_ratios_of_a_slower_machine_are_marked_everywhere(findings, evidence):
    slow = paced(evidence("fp32", (1.0, 0.98, 1.02)), 7.5)
    page = Reader(page_of(findings(slow, paced(evidence("int8", (4.0, 3.9, 4.1)), 5.0))))
    assert page.text.count("1.00 (0.98 to 1.02) *") == 2
    assert "Ratios to PyTorch eager are noisy: those of fp32" in page.text


def test_an_asterisk_is_explained_where_one_is_shown(findings, evidence):
    scattered = spread_over(evidence("int8", (4.0, 3.9, 4.1)), 0.3, 1)
    first, rest = (Reader(part).text for part in open_parts(page_of(findings(scattered)), '<section id="tradeoff"'))
    assert "All reasons for noise are listed with the latencies." in first
    assert "sterisk" not in first
    assert " *" not in first
    assert rest.count("An asterisk marks a noisy ratio.") == 1
    assert "4.00 (3.90 to 4.10) *" in rest


def open_parts(page, at):
    """Cut a page at the beginning of a section into two that a reader can parse."""
    first, _, rest = page.partition(at)
    return first + "</main></body></html>", "<html><body><main>" + at + rest


def test_the_tables_say_beside_which_engine_pytorch_ran(usual):
    text = Reader(page_of(usual)).text
    explanation = (
        "Rows that say “beside fp32” were timed in turns with that engine; "
        "each ratio is to the baseline timed in turns with its own engine."
    )
    assert f"Latency in figures {explanation} The race of all engines, which decides" in text
    assert "What int8 gained and lost, layer by layer Compute layers" in text
    assert "All of them, the slowest first: Slowest layers of fp32" in text


def test_where_nothing_is_noisy_no_asterisk_is_explained(usual):
    assert "asterisk" not in page_of(usual)
    assert "What is noisy" not in page_of(usual)


def test_a_choice_by_more_than_noise_can_explain_holds(findings, evidence):
    entries = evidence("fp32", (1.0, 0.98, 1.02)), evidence("int8", (4.0, 3.9, 4.1))
    page = Reader(page_of(findings(*entries, disturbed=("other programs took 0.8 of 2 cores",))))
    assert "Ship int8 int8 is 4.00 times as fast" in page.text
    assert "During the race other programs took 0.8 of 2 cores: the choice holds, and figures may move." in page.text


def test_the_reason_says_that_the_choice_is_as_fast_and_closer_to_pytorch(findings, evidence):
    exact = evidence("bf16", (4.1, 4.09, 4.11), relative=0.004)
    page = Reader(page_of(findings(exact, evidence("int8", (4.2, 4.19, 4.21), relative=0.02))))
    assert "int8 is as fast, and bf16 is closer to PyTorch." in page.text


def test_the_state_of_a_gpu_is_shown_only_if_there_is_one(gpu, findings, evidence):
    there = Reader(
        page_of(replace(findings(on_gpu(evidence("fp32", (1.0, 0.9, 1.1))), on_gpu(evidence("int8"))), machine=gpu))
    )
    assert "NVIDIA H200 (compute capability 9.0, driver 580.65, CUDA 13.0)" in there.text
    for told in (
        "The state of the GPU during the race",
        "Compute without copies, median ms by the GPU's clock",
        "450 + 612 on the GPU",
    ):
        assert told in there.text
    alone = "Rows that say “in a process of its own” were timed without other contenders"
    assert alone not in there.text
    assert (
        alone
        in Reader(
            page_of(replace(findings(by_itself(on_gpu(evidence("int8")), batch1=0.9, batch8=7.9)), machine=gpu))
        ).text
    )
    here = Reader(page_of(findings(evidence("int8"))))
    for word in ("The state of the GPU during the race", "Compute without copies", "on the GPU"):
        assert word not in here.text


def test_one_precision_at_one_batch_size_is_enough(findings, evidence):
    page = Reader(page_of(findings(evidence("fp32", (2.0, 1.98, 2.02), batches=(8,)))))
    assert "Ship fp32" in page.text


def test_many_precisions_and_batch_sizes_fit(findings, evidence):
    batches = (1, 2, 4, 8, 16, 32, 64, 128)
    entries = []
    for number, name in enumerate(("fp32", "fp16", "bf16", "int8", "fp8")):
        entry = evidence(name, (1.0 + number, 0.99 + number, 1.01 + number), batches=batches)
        layers = [Layer(name=f"{name} {n}", kind=f"Kind{n % 9}", precision=name, computes=True) for n in range(300)]
        times = [LayerTime(**layer.model_dump(), milliseconds=n + 1) for n, layer in enumerate(layers)]
        engine = entry.engine.model_copy(update={"layers": tuple(layers)})
        entries.append(replace(entry, engine=engine, trace=entry.trace.model_copy(update={"layers": tuple(times)})))
    page = page_of(findings(*entries))
    assert len(page) < 1_000_000
    read = Reader(page)
    assert read.text.count("The 10 slowest: Slowest layers of") == len(entries)
    assert len(re.findall(r'id="latency-\d+-title"', page)) == len(batches)


def simplified(before, after):
    base = background_of()
    changes = {"nodes_before": before, "nodes_after": after}
    return replace(base, simplification=base.simplification.model_copy(update=changes))


def test_kinds_of_removed_nodes_are_named(usual):
    page = Reader(page_of(usual, simplified({"Conv": 20, "Shape": 4, "Cast": 6}, {"Conv": 20, "Pad": 1})))
    assert "30 nodes became 21; gone: 6 Cast, 4 Shape; new: 1 Pad. 45.0 MB became 44.0 MB." in page.text


def test_if_no_node_was_removed_one_sentence_says_so(usual):
    page = Reader(page_of(usual, simplified({"Conv": 20, "Relu": 17}, {"Conv": 20, "Relu": 17})))
    assert "Nothing could be removed: 37 nodes were exported, and all of them stayed. 45.0 MB became" in page.text


def test_the_page_says_how_ranges_were_found_or_that_they_were_given(findings, evidence):
    base = background_of()
    assert "Method entropy over 256 images, for 2 activations." in Reader(page_of(findings(evidence("int8")))).text
    given = replace(base, calibration=base.calibration.model_copy(update={"source": "data/calibration/mine.cache"}))
    page = Reader(page_of(findings(evidence("int8")), given))
    assert "The ranges were given (data/calibration/mine.cache), so no activation was observed." in page.text


def test_a_huge_lost_lead_takes_no_more_room(findings, evidence):
    """PyTorch hardly preferred the answer, so any change is a huge share of its lead."""
    entry = evidence("int8")
    lost = entry.validation.spread.model_copy(update={"margin_kept": (-1e9, *entry.validation.spread.margin_kept[1:])})
    entry = replace(entry, validation=entry.validation.model_copy(update={"spread": lost}))
    assert "under -100%" in Reader(page_of(findings(entry))).text


def test_the_page_has_all_that_is_needed_to_reproduce_it(usual):
    text = Reader(page_of(usual)).text
    for told in ("calibration.method auto", "samples.preprocessing.mean 0.5, 0.5, 0.5", "onnx 1.23.2", "a" * 64):
        assert told in text
    assert f"capability {usual.machine.capability or '-'}" in text


def test_tiny_engines_have_a_size(usual):
    tiny = [
        replace(entry, engine=entry.engine.model_copy(update={"bytes": size}))
        for entry, size in zip(usual.precisions, (40_000, 20_000, 10_000), strict=True)
    ]
    page = page_of(replace(usual, precisions=tuple(tiny)))
    assert " 0.0 MB" not in Reader(page).text
    assert "Engine 10.0 kB" in Reader(page).text


def test_dotted_names_break_after_a_dot_and_are_escaped():
    assert breakable("samples.crop") == "samples.<wbr>crop"
    assert breakable("onnx 1.23") == "onnx 1.23"
    assert breakable("a.<b>") == "a.&lt;b&gt;"


def test_code_in_notes_is_escaped():
    assert with_code("run `a <b>` & go") == "run <code>a &lt;b&gt;</code> &amp; go"
