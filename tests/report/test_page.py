"""The page: what it is computed from, and that it works in a real browser without a network."""

from __future__ import annotations

import base64
import csv
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedasmu import Experiment, Result
from fedasmu.algorithms import ALGORITHMS
from fedasmu.report import palette
from fedasmu.report.page import write_page
from fedasmu.report.page.tasks import OUTCOMES, tasks
from helpers.blobs import blobs, settings, softmax
from helpers.browser import Browser
from helpers.made_runs import made_run

METHODS = ("fedasmu", "fedavg", "fedasync")
NAMES = [name for method in ALGORITHMS for name in method.names()]
DRAWN = 50  # pixels of a line at least, where others may lie on top of it
HOSTILE = "x<!--<script>document.title='harmed'<"  # a folder's name


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for method in METHODS:
        for seed in (0, 1):
            fleet = {"devices": 10, "dropout": 0.05, "up_mbps": 0.005}
            table = settings(algorithm={"name": method}, seed=seed, fleet=fleet)
            Experiment(table, model=softmax, data=blobs()).run(folder / method / f"seed-{seed}")
    return folder


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page([runs], tmp_path_factory.mktemp("page") / "report.html")


# --- what it is computed from


def test_the_phases_of_a_task_follow_from_the_fleet(runs: Path) -> None:
    result = Result(runs / "fedasync" / "seed-0")
    found, at = tasks(result), tasks(result).columns
    with (result.directory / "fleet.csv").open() as file:
        fleet = list(csv.DictReader(file))
    size = sum(tensor.nbytes for tensor in result.state_dict.values())
    assert found.delivered.sum() == 60
    for task in np.flatnonzero(found.delivered):
        device = fleet[at["device"][task]]
        samples = 2 * (20 + at["device"][task])  # epochs times the examples that the blobs give this device
        upload = float(device["latency"]) + size * 8e-6 / float(device["up_mbps"])
        assert at["end"][task] - at["up"][task] == pytest.approx(upload, rel=0.1)  # some are under way at the end
        assert at["up"][task] - at["down"][task] == pytest.approx(samples * found.speeds[at["device"][task]], rel=0.1)
    assert at["staleness"][found.delivered].mean() == pytest.approx(result.summary["mean_staleness"])
    assert (at["outcome"] == OUTCOMES.index("lost")).sum() == result.summary["lost"] > 0


def test_the_request_lies_within_the_training(runs: Path) -> None:
    found = tasks(Result(runs / "fedasmu" / "seed-0"))
    at, asked = found.columns, found.delivered & ~np.isnan(found.columns["ask"])
    assert asked.any()
    assert (at["down"] <= at["ask"])[asked].all()
    assert (at["ask"] < at["answer"])[asked].all()
    assert (at["answer"] < at["up"])[asked].all()
    assert ((found.moment > 0) & (found.moment < 1))[asked].all()
    assert np.isnan(found.moment[~asked]).all()
    merged = at["fresh"] >= 0
    assert merged.any()
    assert (at["fresh"] > at["base"])[merged].all()
    assert (~np.isnan(at["beta"]) == (merged & found.delivered)).all()


def test_the_columns_survive_packing(runs: Path) -> None:
    found = tasks(Result(runs / "fedasmu" / "seed-0"))
    packed = json.loads(json.dumps(found.packed()))
    data, offset = gzip.decompress(base64.b64decode(packed["data"])), 0
    for name, kind, length in packed["columns"]:
        column = np.frombuffer(data, dtype=f"<{kind}", count=length, offset=offset)
        assert offset % column.itemsize == 0  # or the browser refuses it
        offset += column.nbytes
        if name in found.columns:
            np.testing.assert_array_equal(column, found.columns[name])
    assert offset == len(data)


def test_the_same_runs_give_the_same_file(runs: Path, page: Path, tmp_path: Path) -> None:
    assert write_page([runs], tmp_path / "new" / "again.html").read_bytes() == page.read_bytes()


def test_it_says_where_runs_were_not_judged_on_test_data(tmp_path: Path) -> None:
    made_run(tmp_path / "run", overrides=["data.held_out=0.1"])
    page = write_page([tmp_path / "run"], tmp_path / "page.html").read_text(encoding="utf-8")
    assert '"measured":"on held-out training data"' in page


def test_nothing_in_it_comes_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert '<link rel="stylesheet"' not in text
    assert " src=" not in text
    assert "{{" not in text.split('id="data"')[0].split("<style>")[0]


# --- in the browser


def quiet(browser: Browser, page: Path) -> bool:
    return browser.complaints == [] and browser.requests == [page.as_uri()]


def ink(browser: Browser, colour: str) -> int:
    """How many pixels of the curves have about this colour."""
    return int(
        browser.run(f"""(() => {{
          const canvas = document.querySelector("#curves canvas");
          const sample = document.body.appendChild(document.createElement("i"));
          sample.style.color = "var(--{colour})";
          const want = getComputedStyle(sample).color.match(/\\d+/g).map(Number);
          const {{ data }} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          let count = 0;
          for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] > 200 && want.every((value, part) => Math.abs(value - data[at + part]) < 12)) count += 1;
          return count;
        }})()""")
    )


def test_it_opens_without_complaints_or_network(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert quiet(browser, page)
    assert browser.run("document.querySelectorAll('#league tbody tr').length") == 3
    assert browser.run("document.querySelectorAll('#distributions canvas').length") == 6
    assert all(ink(browser, f"m{method}") > DRAWN for method in range(3))


def test_the_curves_are_headed_by_the_metric(browser: Browser, page: Path, tmp_path: Path) -> None:
    other = tmp_path / "report.html"
    other.write_text(page.read_text(encoding="utf-8").replace('"metric":{"name":"accuracy"', '"metric":{"name":"rmse"'))
    tuned = tmp_path / "tuned.html"
    held = '"measured":"on held-out training data"'
    tuned.write_text(page.read_text(encoding="utf-8").replace('"measured":""', held))
    titles = "Test accuracy", "Test rmse", "The accuracy, measured on held-out training data"
    for shown, title in zip((page, other, tuned), titles, strict=True):
        browser.open(shown)
        assert browser.run("document.getElementById('curves-title').textContent") == title


def test_a_toggle_hides_a_method_everywhere(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('#methods input[value=\"1\"]').focus()")
    browser.key(" ")
    browser.settle()
    assert ink(browser, "m1") == 0
    assert ink(browser, "m0") > DRAWN
    visible = "[...document.querySelectorAll('#league tbody tr:not([hidden]) th')].map(cell => cell.lastChild.data)"
    assert browser.run(visible) == ["fedasmu", "fedasync"]
    browser.key(" ")
    browser.settle()
    assert ink(browser, "m1") > DRAWN


def test_a_crowd_begins_with_the_few_that_matter(browser: Browser, tmp_path: Path) -> None:
    names = [name for name in NAMES if not name.startswith("fedasmu-")][:9]
    for place, name in enumerate(names):
        ends = 100.0 * (1 + 9 * (name == "moon"))
        made_run(tmp_path / name / "seed-0", name, curve=[(0, 0.1), (ends, 0.5 + 0.01 * place)])
    page = write_page([tmp_path], tmp_path / "report.html")
    browser.open(page)
    shown = "[...document.querySelectorAll('#methods input:checked')].length"
    chips = "[...document.querySelectorAll('#methods label')].filter(chip => chip.offsetWidth).length"
    assert (browser.run(shown), browser.run(chips)) == (6, 6)
    assert browser.run("document.getElementById('more').innerText") == "+3 more", "what is hidden has a sign"
    assert browser.run("document.getElementById('lesson').innerText").startswith(names[-1])
    assert browser.run("curve.u.scales.x.max") == pytest.approx(100), "one slow method presses nobody into a corner"
    browser.run("document.getElementById('more').click()")
    assert browser.run(chips) == 9
    browser.run("document.getElementById('show-all').click()")
    assert browser.run(shown) == 9
    browser.run("document.querySelectorAll('#methods label')[4].dispatchEvent(new MouseEvent('dblclick'))")
    browser.settle()
    assert browser.run("[...document.querySelectorAll('#methods input:checked')].map(box => box.value)") == ["4"]
    browser.run("document.getElementById('show-none').click()")
    assert browser.run(shown) == 0
    assert browser.run("document.getElementById('decisions').hidden"), "nobody decided anything here"
    assert quiet(browser, page)


def test_figures_and_page_have_the_same_colours() -> None:
    style = (Path(palette.__file__).parent / "page" / "style.css").read_text()
    assert re.findall(r"--m\d: light-dark\((#\w+),", style) == list(palette.COLOURS)


def test_the_table_is_sorted_by_any_column(browser: Browser, page: Path) -> None:
    browser.open(page)
    column = browser.run(
        "[...document.querySelectorAll('#league thead th')].findIndex(th => th.innerText.startsWith('staleness'))"
    )
    values = f"[...document.querySelectorAll('#league tbody tr')].map(row => parseFloat(row.cells[{column}].innerText))"
    click = f"document.querySelectorAll('#league thead button')[{column}].click()"
    browser.run(click)
    first = browser.run(values)
    assert first == sorted(first)
    browser.run(click)
    assert browser.run(values) == sorted(first, reverse=True)
    assert browser.run(f"document.querySelectorAll('#league thead th')[{column}].ariaSort") == "descending"


def window(browser: Browser) -> tuple[float, float]:
    browser.settle()
    first, _, rest = browser.run("document.getElementById('window').textContent").partition(" s to ")
    return float(first.replace(",", "")), float(rest.split(" s")[0].replace(",", ""))


def test_the_timeline_zooms_and_moves(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('zoom-all').click()")
    _, until = window(browser)
    assert until > 50
    browser.run("document.getElementById('zoom-in').click()")
    left, right = window(browser)
    assert right - left == pytest.approx(until / 2, rel=0.01)
    browser.run("document.getElementById('timeline').focus()")
    browser.key("+")
    closer = window(browser)
    assert closer[1] - closer[0] == pytest.approx(until / 4, rel=0.01)
    browser.key("ArrowRight")
    assert window(browser)[0] > closer[0]
    x, y = place(browser)
    before = window(browser)
    browser.mouse("mousePressed", x, y, button="left", buttons=1)
    browser.mouse("mouseMoved", x + 200, y, button="left", buttons=1)
    browser.mouse("mouseReleased", x + 200, y, button="left")
    assert window(browser)[0] < before[0]
    before = window(browser)
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-300, modifiers=2)  # with Ctrl
    after = window(browser)
    assert after[1] - after[0] < before[1] - before[0]
    assert quiet(browser, page)


def place(browser: Browser) -> tuple[float, float]:
    """The middle of the timeline, scrolled into view."""
    found = browser.run("""(() => {
      const timeline = document.getElementById("timeline");
      timeline.scrollIntoView({ block: "center", behavior: "instant" });
      const box = timeline.getBoundingClientRect();
      return [box.left + box.width / 2, box.top + box.height / 2];
    })()""")
    return found[0], found[1]


def test_a_task_and_a_curve_tell_about_themselves(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.getElementById('zoom-all').click()")
    x, y = place(browser)
    told = "document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent"
    for offset in range(-200, 200, 5):
        browser.mouse("mouseMoved", x + offset, y)
        if browser.run(told):
            break
    assert "device" in browser.run(told)
    assert "from version" in browser.run(told)
    browser.run("document.getElementById('curves').scrollIntoView({ block: 'center', behavior: 'instant' })")
    left, top = browser.run(
        "(box => [box.left, box.top])(document.querySelector('#curves .u-over').getBoundingClientRect())"
    )
    browser.mouse("mouseMoved", left + 200, top + 100)
    browser.settle()
    tip = browser.run("document.querySelector('#curves .tip').innerText")
    assert "virtual time" in tip
    assert all(method in tip for method in METHODS)


def test_every_method_has_its_timeline(browser: Browser, page: Path) -> None:
    browser.open(page)
    said = set()
    for place in range(3):
        browser.run(f"timeline.show(league.timelines[{place}])")
        browser.run("document.getElementById('zoom-all').click()")
        window(browser)
        said.add(browser.run("document.getElementById('window').textContent"))
    assert len(said) == 3
    browser.run("document.querySelectorAll('#axis input')[2].click()")
    browser.settle()
    assert browser.run("charts.length") == 7
    assert quiet(browser, page)


def test_light_and_dark(browser: Browser, page: Path) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    browser.open(page)
    light = browser.run(ground)
    # The other methods' lines may lie on top of this one.
    browser.run('for (const one of [1, 2]) document.querySelector(`#methods input[value="${one}"]`).click()')
    browser.run("document.getElementById('theme').click()")
    browser.settle()
    dark = browser.run(ground)
    assert ink(browser, "m0") > DRAWN  # drawn again, in the colours of the dark
    browser.open(page, dark=True)
    assert browser.run(ground) == dark != light


def test_a_smoothed_curve_keeps_its_ends_and_its_straight_lines(browser: Browser, page: Path) -> None:
    """Whatever the grid: that of many methods has points in heaps, of which a mean over neighbours made stairs."""
    browser.open(page)
    heaps = [0.0, 0.9, 1.0, 1.1, 1.9, 2.0, 2.1, 2.9, 3.0, 3.1, 4.0]
    line = browser.run(f"smoothed({heaps}, {heaps}, 1.05)")
    assert line == pytest.approx(heaps)
    spike = browser.run("smoothed([0, 1, 2, 3, 4, 5], [0, 0, 6, 0, 0, null], 1)")
    assert spike == [0, 1.5, 3, 1.5, 0, None]  # triangles: of height 6 over [1, 3], half of it over [0, 2]


def test_what_stays_on_the_screen_covers_what_is_below_it(browser: Browser, page: Path) -> None:
    """The list of methods, with its label, stays on a desk; on a phone it would take a quarter of the screen."""
    browser.open(page, 1280, 500)
    browser.run("scrollTo({ top: 500, behavior: 'instant' })")
    label = browser.run("document.querySelector('#methods legend').getBoundingClientRect().toJSON()")
    whole = browser.run("document.getElementById('methods').getBoundingClientRect().toJSON()")
    assert whole["top"] == 0
    assert whole["top"] + 8 <= label["top"] + 1
    chip = browser.run("document.querySelector('#methods label').getBoundingClientRect().toJSON()")
    assert label["right"] < chip["left"]
    browser.resize(390, 844)
    browser.run("scrollTo({ top: 900, behavior: 'instant' })")
    assert browser.run("document.getElementById('methods').getBoundingClientRect().bottom") < 0


@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_a_phone_and_a_desk(browser: Browser, page: Path, width: int) -> None:
    browser.open(page, width=width)
    browser.fits(width)


def test_a_name_cannot_bring_a_script(browser: Browser, runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "fedavg" / "seed-0", tmp_path / HOSTILE / "seed-0")
    page = write_page([tmp_path], tmp_path / "report.html")
    browser.open(page)
    assert browser.run("document.title").startswith("FedASMU: ")
    assert browser.run("document.querySelector('#league tbody th').lastChild.data") == HOSTILE
    assert quiet(browser, page)


def test_a_run_without_events_has_a_page_too(browser: Browser, tmp_path: Path) -> None:
    made_run(tmp_path / "run", fresh=2)
    page = write_page([tmp_path], tmp_path / "report.html")
    browser.open(page)
    assert browser.run("document.getElementById('timeline-section').hidden")
    assert browser.run("document.querySelectorAll('#curves canvas').length") == 1
    assert quiet(browser, page)


def large(template: Path, out: Path, count: int) -> None:
    """A run like this one, with `count` tasks of four events each."""
    shutil.copytree(template, out)
    devices, lines = 200, list[dict[str, Any]]()
    learned = {"verdict": "accepted", "loss": 0.5, "slot": 3, "beta": 0.3, "reward": 0.01}
    for task in range(count):
        now, common = float(task), {"task": task, "device": task % devices}
        length = 20 + (task * 7) % 90
        lines += [
            {"time": now, "event": "start", **common, "version": task},
            {"time": now + length / 3, "event": "fetch", **common, "fresh": task + 5},
            {"time": now + length, "event": "upload", **common, "base": task, "staleness": length, **learned},
            {"time": now + length, "event": "version", "version": task + 1, "tasks": [task], "weights": [0.2]},
        ]
    lines.sort(key=lambda line: float(line["time"]))
    (out / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    header, first = (template / "fleet.csv").read_text().splitlines()[:2]
    profile = first.partition(",")[2]
    (out / "fleet.csv").write_text("\n".join([header, *(f"{device},{profile}" for device in range(devices))]) + "\n")


def test_a_run_with_100_000_events_opens_within_seconds(browser: Browser, runs: Path, tmp_path: Path) -> None:
    large(runs / "fedasmu" / "seed-0", tmp_path / "run", 25_000)
    assert sum(1 for _ in Result(tmp_path / "run").events) == 100_000
    page = write_page([tmp_path / "run"], tmp_path / "report.html")
    assert page.stat().st_size < 3_000_000
    assert browser.open(page) < 10.0  # about half a second on an idle machine
    browser.run("document.getElementById('zoom-all').click()")
    browser.settle()
    assert "25,000 tasks" in browser.run("document.getElementById('window').textContent")
    assert quiet(browser, page)
