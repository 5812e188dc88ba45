"""The live page: what it reads, whom it lets in, and that it moves in a real browser while a run goes on."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedasmu.commands.watching import beside
from fedasmu.events import columns
from fedasmu.watch import prometheus
from fedasmu.watch.follow import CHUNK, Place, news
from fedasmu.watch.runs import find
from helpers.browser import Browser

RECIPE = """
model = "softmax"
data.name = "fashion-mnist-small"
fleet.devices = 20
pacing.max_in_flight = 5
local = {epochs = 1, lr = 0.05}
algorithm.name = "fedasmu"
evaluate.every = 5
stop.uploads = 3000
checkpoint_seconds = 1
"""


# --- what it reads


def test_only_whole_lines_are_told_and_each_once(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"a":1}\n{"b"')
    (tmp_path / "metrics.csv").write_text("time\n")
    first = news(tmp_path, Place())
    assert (first.events, first.metrics, first.anew) == ('{"a":1}\n', "time\n", False)
    assert not news(tmp_path, first.place)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write(":2}\n")
    assert news(tmp_path, first.place).events == '{"b":2}\n'


def test_a_resumed_run_is_waited_for_and_another_one_is_read_anew(tmp_path: Path) -> None:
    events = tmp_path / "events.jsonl"
    events.write_text("1\n2\n3\n")
    known = news(tmp_path, Place()).place
    os.truncate(events, 2)  # as a resume does: it will write the same bytes again
    assert not news(tmp_path, known)
    with events.open("a") as file:
        file.write("2\n3\n4\n")
    assert news(tmp_path, known).events == "4\n"
    (tmp_path / "other").write_text("new\n")
    (tmp_path / "other").replace(events)
    again = news(tmp_path, known)
    assert (again.events, again.anew) == ("new\n", True)


def test_a_long_file_comes_in_parts(tmp_path: Path) -> None:
    lines = "".join(f"{number}\n" for number in range(400_000))
    (tmp_path / "events.jsonl").write_text(lines)
    place, told, parts = Place(), "", 0
    while found := news(tmp_path, place):
        assert len(found.events) <= CHUNK
        place, told, parts = found.place, told + found.events, parts + 1
    assert told == lines
    assert parts > 1


@pytest.mark.parametrize("text", ["", "1", "1-2-3", "a-b-c-d", "1-2-3-4-5", "-1-2-3-4", "9" * 40 + "-1-1-1", "1-2-3-x"])
def test_a_place_that_makes_no_sense_is_the_beginning(text: str) -> None:
    assert Place.parse(text) == Place()


def test_runs_are_found_below_a_folder_whatever_is_in_them(tmp_path: Path) -> None:
    for name in ("b/seed-0", "a/seed-0", "a/seed-1"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.toml").write_text('seed = 3\n[algorithm]\nname = "fedavg"\n')
    (tmp_path / "b/seed-0/config.toml").write_text("= not toml")
    (tmp_path / "a/seed-1/metrics.csv").write_bytes(b"time,uploads\n1.0,5\n2.0,\xff")
    (tmp_path / "link").symlink_to("/")
    runs = find(tmp_path)
    assert [run.label for run in runs] == ["a/seed-0", "a/seed-1", "b/seed-0"]
    assert runs[1].overview()["last"] == "1.0,5"
    assert runs[2].overview()["method"] == ""
    json.dumps([run.overview() for run in runs])


@pytest.mark.parametrize(
    ("summary", "score"),
    [
        ('{"metric": "accuracy", "accuracy": 0.75}', 0.75),
        ('{"metric": "rmse", "accuracy": 0.75}', None),
        ('{"metric": "accuracy", "accuracy": "high"}', None),
        ('{"metric": "accuracy", "accuracy": NaN}', None),
        ('{"metric": ["accuracy"]}', None),
        ("[]", None),
        ("{", None),
    ],
)
def test_a_finished_run_has_a_score_if_its_summary_has_one(summary: str, score: float | None, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (run,) = find(tmp_path)
    assert run.overview()["score"] is None
    (tmp_path / "summary.json").write_text(summary)
    assert run.overview()["score"] == score


# --- whom it lets in


@contextmanager
def watching(folder: Path, *options: str) -> Iterator[str]:
    """The address of a page for this folder, served by the command."""
    command = [sys.executable, "-m", "fedasmu", "watch", str(folder), "--wait", *options]
    page = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert page.stdout is not None
        yield page.stdout.readline().split()[3]
    finally:
        page.terminate()
        page.wait()


def asked(url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, method=method, headers=headers)
    tls = ssl._create_unverified_context()  # the page's certificate is its own
    try:
        with urllib.request.urlopen(request, timeout=20, context=tls) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_is_read_only_and_answers_to_its_own_name(tmp_path: Path) -> None:
    with watching(tmp_path, "--port", "0") as url:
        code, page = asked(url)
        assert code == 200
        assert "{{" not in page
        assert asked(url, Host="evil.example:80")[0] == 421
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert asked(url, method)[0] == 405
        for path in ("../etc/passwd", "config.toml", "run.csv?run=../../etc", "run.csv?run=%00"):
            assert asked(url + path)[1].count("\n") <= 1


def test_others_see_it_with_tls_and_a_token_only(tmp_path: Path) -> None:
    with watching(tmp_path, "--listen", "127.0.0.1:0") as url:
        assert url.startswith("https://127.0.0.1:")
        place, token = url.split("?token=")
        assert asked(url)[0] == 200
        assert asked(place)[0] == 403
        assert asked(f"{place}?token={token[:-1]}x")[0] == 403
        assert asked(f"{place}run.csv", Cookie=f"fedasmu-watch={token}")[0] == 200
        assert asked(f"{place}stream")[0] == 403
        with pytest.raises(OSError):
            asked(place.replace("https", "http"))


def test_on_all_addresses_it_answers_to_any_number_and_to_the_machines_name(tmp_path: Path) -> None:
    with watching(tmp_path, "--listen", "0.0.0.0:0") as url:
        assert url.startswith(f"https://{socket.gethostname()}:")
        here = url.replace(socket.gethostname(), "127.0.0.1")
        for host, code in (("192.0.2.7:80", 200), ("[2001:db8::1]", 200), ("evil.example:80", 421)):
            assert asked(here, Host=host)[0] == code


def test_a_wrong_port_and_a_wrong_folder_are_said() -> None:
    def told(*arguments: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "fedasmu", "watch", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stderr

    code, message = told("no/such/run")
    assert code == 2
    assert "no such directory" in message
    assert told(".", "--listen", "nonsense")[0] == 2
    code, message = told(".", "--listen", "127.0.0.1:1000000")
    assert code == 2
    assert "Traceback" not in message


def test_a_folder_called_as_the_package_is_not_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A comparison has one, fedasmu/seed-0; here it would even be a package."""
    (tmp_path / "fedasmu").mkdir()
    (tmp_path / "fedasmu" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    with beside(tmp_path / "run", True):
        assert "watch it at http://" in capsys.readouterr().out


# --- in the browser


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a run or go on with it; whatever still runs at the end is killed."""
    (tmp_path / "recipe.toml").write_text(RECIPE)
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "fedasmu", "run", *arguments, "--workers", "inline"]
        started.append(subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


UPLOADS = "(document.querySelector('#numbers dd')?.innerText ?? '0').replaceAll(',', '').split(' ')[0] * 1"


def test_it_moves_while_a_run_goes_on_and_survives_its_kill_and_resume(
    browser: Browser, start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    with watching(tmp_path / "run", "--port", "0") as url:
        browser.visit(url)
        run = start("recipe.toml", "--out", "run")
        browser.wait(f"{UPLOADS} > 20", 120)
        before = browser.run(UPLOADS)
        browser.wait(f"{UPLOADS} > {before} + 20", 120)
        while not (tmp_path / "run" / "checkpoint").is_dir():
            assert run.poll() is None
        run.send_signal(signal.SIGKILL)
        run.wait()
        killed = browser.run(UPLOADS)
        start("--resume", "run")
        browser.wait(f"{UPLOADS} > {killed} + 20", 120)
        assert browser.run("fold.open.size") <= 5, "a task that was replayed is not in flight twice"
        assert browser.run("document.querySelectorAll('#devices tbody tr').length") == 20
        assert not browser.run("document.getElementById('learned').hidden")
        assert browser.run("Math.max(...charts.rate.u.data[1])") > 0
        assert browser.run("charts.rate.u.data[0].at(-1) <= fold.now"), "uploads a minute: of whole stretches of time"
        browser.run("document.getElementById('clock').click()")
        browser.wait(
            "document.getElementById('clock').innerText.includes('run') && charts.score.u.data[0].length > 3", 60
        )
        assert browser.run("charts.score.u.data[0].every((minute, at, all) => !at || minute >= all[at - 1])")
        assert browser.run("Math.max(...charts.score.u.data[0])") < 10, "minutes of real time, not virtual seconds"
        browser.resize(390, 800)
        browser.fits(390)
        assert browser.complaints == []


def test_a_study_shows_its_runs(browser: Browser, tmp_path: Path) -> None:
    for seed, method in enumerate(("fedavg", "<b>odd</b>")):
        run = tmp_path / f"{method.strip('<b>/')}" / f"seed-{seed}"
        run.mkdir(parents=True)
        run.joinpath("config.toml").write_text(
            f"seed = {seed}\n[algorithm]\nname = {json.dumps(method)}\n[stop]\nuploads = 10\n"
        )
        run.joinpath("metrics.csv").write_text("time,uploads,rmse\n0.0,0,0.1\n5.0,5,0.4\n")
        run.joinpath("events.jsonl").write_text('{"time":1.0,"event":"start","task":0,"device":3,"version":0}\n')
    (tmp_path / "fedavg" / "seed-0" / "summary.json").write_text('{"metric": "rmse", "rmse": 0.25}')
    with watching(tmp_path, "--port", "0") as url:
        browser.visit(url)
        browser.wait("document.querySelectorAll('#runs tbody tr').length === 2", 60)
        browser.wait("document.getElementById('runs').innerText.includes('0.4')", 60)
        text = browser.run("document.getElementById('runs').innerText")
        assert "finished" in text
        table = "document.getElementById('methods-so-far').innerText"
        assert browser.run(table).split("\n")[1:] == ["fedavg\t1 of 1\t0.25\t5", "odd\t0 of 1\t\u2013\t\u2013"]
        again = tmp_path / "fedavg" / "seed-7"
        shutil.copytree(tmp_path / "fedavg" / "seed-0", again)
        browser.wait(f"{table}.includes('2 of 2')", 60)
        (again / "summary.json").write_text('{"metric": "rmse", "rmse": 0.35}')
        browser.wait(f"{table}.includes('0.3 ± 0.071')", 60)
        shutil.rmtree(again)
        browser.wait(f"{table}.includes('1 of 1')", 60)
        assert "<b>odd</b>" in text, "a name is text, never HTML"
        browser.run("document.querySelector('#runs button').click()")
        browser.wait("!document.getElementById('one').hidden && fold.open.size === 1", 60)
        browser.wait("charts.score.u.axes[1].label === 'rmse' && studyChart.axes[1].label === 'rmse'", 60)
        assert browser.run("document.querySelector('#numbers').innerText").count("rmse") == 1
        page = browser.run("document.querySelector('main').innerText.toLowerCase()")
        assert "rmse" in text.lower()
        assert "accuracy" not in page.replace("own accuracy", ""), "nothing is called by another metric's name"
        lines = browser.run("[1, 2].map(at => studyChart.series[at].stroke())")
        assert lines == browser.run("['m0', 'm1'].map(name => colours.get(name))"), "whatever else has been drawn"
        assert browser.run("charts.weights.u.data") == [[0], [None]], "no point where nothing is known"
        assert browser.complaints == []


def event(kind: str, time: float, task: int, device: int, **more: object) -> str:
    return json.dumps({"time": time, "event": kind, "task": task, "device": device, **more}) + "\n"


def test_a_device_shows_its_last_tasks_and_a_redraw_leaves_the_focus(browser: Browser, tmp_path: Path) -> None:
    accepted = {"base": 0, "staleness": 2, "verdict": "accepted", "loss": 0.25, "own_accuracy": 0.75}
    lines = [event("start", 1.0, 0, 3, version=0), event("upload", 4.0, 0, 3, **accepted)]
    lines += [event("start", 5.0, 1, 3, version=1), event("lost", 6.0, 1, 3), event("start", 7.0, 2, 3, version=1)]
    (tmp_path / "config.toml").write_text('seed = 0\n[algorithm]\nname = "fedasync"\n')
    (tmp_path / "metrics.csv").write_text("time,uploads,accuracy\n0.0,0,0.1\n")
    (tmp_path / "events.jsonl").write_text(event("start", 0.5, 9, 4, version=0) + "".join(lines))
    cells = "[...row.cells].map(cell => cell.innerText.replace('\\u2013', ''))"  # a dash, where nothing is known
    shown = f"[...document.querySelectorAll('#history-table tbody tr')].map(row => {cells})"
    with watching(tmp_path, "--port", "0") as url:
        browser.visit(url)
        browser.wait("document.querySelectorAll('#devices tbody tr').length === 2", 60)
        assert browser.run("document.getElementById('history').hidden")
        assert browser.run("document.getElementById('now').clientHeight") < 100, "two devices have no room for 24"
        browser.run("(one => { one.focus(); one.click(); })(document.querySelector('#devices .link'))")
        assert browser.run(shown) == [
            ["2", "7 s", "", "", "0", "under way", "", "", ""],
            ["1", "5 s", "", "6 s", "1", "lost", "", "", ""],
            ["0", "1 s", "", "4 s", "3", "accepted", "2", "0.25", "0.75"],
        ]
        assert (
            browser.run("document.getElementById('history-title').innerText") == "Device 3: busy, 1 delivered, 1 lost"
        )
        with (tmp_path / "events.jsonl").open("a") as file:
            file.write(event("upload", 9.0, 2, 3, **accepted))
        browser.wait(f"{shown}[0][5] === 'accepted'", 60)
        assert browser.run("document.activeElement.innerText") == "3"
        browser.run("document.activeElement.click()")
        assert browser.run("document.getElementById('history').hidden")
        with (tmp_path / "events.jsonl").open("a") as file:
            file.writelines(event("start", 9.5, task, task, version=1) for task in range(10, 50))
        browser.wait("document.getElementById('now').clientHeight > 24 * LANE", 60)
        assert browser.complaints == []


SHOWN = "[...document.querySelectorAll('#{} + .legend:not([hidden]) li:not([hidden])')].map(one => one.innerText)"


@pytest.mark.parametrize(
    ("own", "named"), [("", []), ("0.4,0.2", ["accuracy", "mean of the devices", "their worst tenth"])]
)
def test_lines_have_names_where_there_are_several(own: str, named: list[str], browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('seed = 0\n[algorithm]\nname = "fedasync"\n')
    (tmp_path / "events.jsonl").write_text("")
    rows = [f"{time}.0,{time},0.5,1.0,2.0,{own or ','}\n" for time in range(1, 4)]
    (tmp_path / "metrics.csv").write_text(
        "time,uploads,accuracy,loss,train_loss,device_accuracy,worst_tenth\n" + "".join(rows)
    )
    with watching(tmp_path, "--port", "0") as url:
        browser.visit(url)
        browser.wait(f"{SHOWN.format('loss')}.join() === 'test,training'", 60)
        assert browser.run(SHOWN.format("score")) == named
        browser.run("document.getElementById('clock').disabled = false, document.getElementById('clock').click()")
        browser.wait("document.querySelectorAll('#score ~ .legend').length === 1", 60)
        assert browser.complaints == []


SERVICE = {
    "at": 1.7e9,
    "time": 60.0,
    "state": "serving",
    "requests": 12,
    "refusals": {"visit": 3},
    "visits": 1,
    "disk_free": 5e9,
    "disk_full": False,
    "ledger_bytes": 1000,
    "recovered_acts": 4,
    "devices": [
        {"device": 0, "name": "<i>pi", "state": "working", "seen": 1.0, "task": 7, "lease": 50.0, "examples": 9}
        | {"bytes_down": 2e6, "bytes_up": 1e6}
    ],
}


def served(folder: Path, **changes: object) -> None:
    (folder / "config.toml").write_text('seed = 0\n[algorithm]\nname = "fedasync"\n')
    (folder / "events.jsonl").write_text("")
    head = ",".join(columns("accuracy"))
    (folder / "metrics.csv").write_text(f"{head}\n5.0,2,8,0.75,0.5,,1.5,1,2,3,100,50,4,0.625,0.25\n")
    (folder / "service.json").write_text(json.dumps(SERVICE | changes))


def test_a_service_shows_its_devices(browser: Browser, tmp_path: Path) -> None:
    served(tmp_path)
    with watching(tmp_path, "--port", "0") as url:
        browser.visit(url)
        browser.wait("document.querySelectorAll('#seats tbody tr').length === 1", 60)
        text = browser.run("document.getElementById('service').innerText")
        assert "<i>pi" in text, "a name is text, never HTML"
        assert "3 visit" in text
        served(tmp_path, state="over")
        browser.wait("document.getElementById('service').innerText.includes('over')", 60)
        assert browser.complaints == []


# --- for machines


def test_prometheus_and_health(tmp_path: Path) -> None:
    odd = tmp_path / 'a "b"\\c'
    odd.mkdir()
    served(odd)
    with watching(tmp_path, "--port", "0") as url:
        code, text = asked(url + "metrics")
        assert code == 200
        assert asked(url + "healthz") == (200, '{"watching":true}')
        assert asked(url + "metrics", Host="evil.example")[0] == 421
    label = r'run="a \"b\"\\c"'
    assert f'fedasmu_score{{{label},metric="accuracy"}} 0.75\n' in text
    assert f"fedasmu_uploads_total{{{label}}} 8.0\n" in text
    assert f"fedasmu_device_accuracy{{{label}}} 0.625\n" in text
    assert f"fedasmu_worst_tenth_accuracy{{{label}}} 0.25\n" in text
    assert f'fedasmu_service_devices{{{label},state="working"}} 1.0\n' in text
    assert f'fedasmu_service_refusals_total{{{label},code="visit"}} 3.0\n' in text
    sample = re.compile(r'fedasmu_[a-z_]+\{([a-z]+="([^"\\\n]|\\[\\"n])*",?)+\} [0-9.e+-]+')
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(sample.fullmatch(line) for line in lines)
    assert text.count("# TYPE fedasmu_score gauge") == 1


@pytest.mark.parametrize(
    "found", ["", "[]", "{", '{"devices": 3}', '{"devices": [1, null], "requests": "many", "at": 1e999}']
)
def test_what_is_no_service_is_passed_over(tmp_path: Path, found: str) -> None:
    served(tmp_path)
    (tmp_path / "service.json").write_text(found)
    assert "fedasmu_service_requests_total" not in prometheus.text(find(tmp_path))


def test_100_000_events_stay_light(browser: Browser, tmp_path: Path) -> None:
    devices, lines = 1000, []
    for task in range(33_334):
        common = f'"task":{task},"device":{task % devices}'
        lines.append(f'{{"time":{task}.0,"event":"start",{common},"version":{task}}}')
        lines.append(
            f'{{"time":{task}.5,"event":"upload",{common},"base":{task},"staleness":3,"verdict":"accepted","loss":1.0}}'
        )
        lines.append(f'{{"time":{task}.5,"event":"version","version":{task + 1},"tasks":[{task}],"weights":[0.1]}}')
    (tmp_path / "config.toml").write_text('seed = 0\n[algorithm]\nname = "fedasync"\n')
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "metrics.csv").write_text("time,uploads,accuracy\n0.0,0,0.1\n")
    with watching(tmp_path, "--port", "0") as url:
        browser.visit(url)
        browser.wait(f"{UPLOADS} === 33334", 60)
        kept = "fold.done.length + fold.lines.length + fold.weights.columns[0].length"
        assert browser.run(kept) < 10_000, "what is kept does not grow with the run"
        assert browser.run("[...fold.devices.values()].every(one => one.history.length === KEPT_HISTORY)")
        assert browser.run("document.querySelectorAll('*').length") < 3_000
        assert browser.complaints == []
