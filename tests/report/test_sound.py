"""A damaged or hostile run directory: one line that names the file, and the report of the other runs."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedasmu import Experiment, Result, cli, write_report
from fedasmu.errors import UserError, printable
from fedasmu.report.labels import slug
from fedasmu.report.latex import escaped
from fedasmu.report.league import find
from fedasmu.report.page import write_page
from fedasmu.report.sound import check
from fedasmu.storage.record import SERVED
from helpers.blobs import blobs, settings, softmax

RUN: dict[str, Path] = {}


@pytest.fixture
def finished(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, a copy for every test."""
    if not RUN:
        RUN["there"] = tmp_path_factory.mktemp("once") / "run"
        table = settings(algorithm={"name": "fedasmu"}, stop={"uploads": 12}, evaluate={"targets": [0.5]})
        Experiment(table, model=softmax, data=blobs()).run(RUN["there"])
    shutil.copytree(RUN["there"], tmp_path / "runs" / "good")
    shutil.copytree(RUN["there"], tmp_path / "runs" / "bad")
    return tmp_path / "runs" / "bad"


def summary(**changes: object) -> Callable[[str], str]:
    return lambda text: json.dumps(json.loads(text) | changes)


def event(kind: str, **changes: object) -> Callable[[str], str]:
    """The first event of this kind, changed."""

    def change(text: str) -> str:
        lines = [json.loads(line) for line in text.splitlines()]
        next(line for line in lines if line["event"] == kind).update(changes)
        return "".join(json.dumps(line) + "\n" for line in lines)

    return change


def replaced(old: str, new: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


def cell(row: int, column: int, value: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        table = [line.split(",") for line in text.splitlines()]
        table[row][column] = value
        return "".join(",".join(line) + "\n" for line in table)

    return change


DAMAGES: dict[str, tuple[str, Callable[[str], str]]] = {
    "summary cut": ("summary.json", lambda text: "{"),
    "summary empty": ("summary.json", lambda text: ""),
    "summary a list": ("summary.json", lambda text: "[1, 2]"),
    "summary nested": ("summary.json", lambda text: "[" * 100_000),
    "summary without": ("summary.json", lambda text: "{}"),
    "summary text": ("summary.json", summary(accuracy="high")),
    "summary nan": ("summary.json", summary(accuracy=float("nan"))),
    "summary huge": ("summary.json", summary(bytes_up=10**400)),
    "summary digits": ("summary.json", lambda text: '{"seed": ' + "9" * 5000 + "}"),
    "summary method": ("summary.json", summary(method=["x"])),
    "summary targets": ("summary.json", summary(time_to=[0.5])),
    "summary target": ("summary.json", summary(time_to={"__import__": 3})),
    "config cut": ("config.toml", lambda text: text[: len(text) // 2 + 5] + "= ["),
    "config empty": ("config.toml", lambda text: ""),
    "config seed": ("config.toml", replaced("seed = 0", 'seed = "x"')),
    "config digits": ("config.toml", replaced("seed = 0", "seed = 0\nmore = 0x" + "f" * 5000)),
    "config nested": ("config.toml", replaced("seed = 0", "seed = 0\nmore = " + "[" * 5000 + "]" * 5000)),
    "config bytes": ("config.toml", lambda text: "\udcff\udcfe"),
    "config metric": ("config.toml", replaced('metric = "accuracy"', r'metric = "x\n\\input{mine}"')),
    "metrics head": ("metrics.csv", lambda text: text.splitlines()[0] + "\n"),
    "metrics empty": ("metrics.csv", lambda text: ""),
    "metrics cut": ("metrics.csv", lambda text: text[:-20]),
    "metrics text": ("metrics.csv", cell(2, 3, "much")),
    "metrics nan": ("metrics.csv", cell(2, 3, "nan")),
    "metrics back": ("metrics.csv", cell(1, 0, "1e30")),
    "metrics column": ("metrics.csv", replaced("accuracy", "curiosity")),
    "events cut": ("events.jsonl", lambda text: text[:-20]),
    "events kind": ("events.jsonl", event("start", event="dance")),
    "events time": ("events.jsonl", event("start", time="soon")),
    "events late": ("events.jsonl", lambda text: text.replace('"time":0.0', '"time":Infinity')),
    "events device": ("events.jsonl", event("start", device=10**10)),
    "events below": ("events.jsonl", event("start", device=-1)),
    "events verdict": ("events.jsonl", event("upload", verdict="perhaps")),
    "events staleness": ("events.jsonl", event("upload", staleness=10**30)),
    "events weights": ("events.jsonl", event("version", weights="all")),
    "events number": ("events.jsonl", lambda text: "17\n" + text),
    "events bytes": ("events.jsonl", lambda text: "\udcff\n" + text),
    "fleet links": ("fleet.csv", cell(1, 2, "0")),
    "fleet text": ("fleet.csv", cell(1, 2, "fast")),
    "fleet of few": ("fleet.csv", lambda text: "".join(text.splitlines(keepends=True)[:3])),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGES.values(), ids=DAMAGES.keys())
def test_what_is_broken_is_named(name: str, damage: Callable[[str], str], finished: Path) -> None:
    path = finished / name
    path.write_text(damage(path.read_text(errors="surrogateescape")), errors="surrogateescape")
    with pytest.raises(UserError) as found:
        check(Result(finished))
    assert str(found.value).startswith(f"{path}")
    said: list[str] = []
    (kept,) = find([finished.parent], said.append)
    assert kept.directory.name == "good"
    (line,) = said
    assert line.startswith(f"left out: {path}")
    assert "\n" not in line


@pytest.mark.parametrize("name", ["config.toml", "fleet.csv"])
@pytest.mark.parametrize("instead", ["nothing", "a folder", "a pipe"])
def test_what_is_missing_or_no_file_is_named(name: str, instead: str, finished: Path) -> None:
    (finished / name).unlink()
    if instead == "a folder":
        (finished / name).mkdir()
    elif instead == "a pipe":
        os.mkfifo(finished / name)
    with pytest.raises(UserError, match=f"{name}: missing"):
        check(Result(finished))


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["a folder", "a pipe"])
def test_events_that_are_no_file_are_named(make: Callable[[Path], None], finished: Path) -> None:
    (finished / "events.jsonl").unlink()
    make(finished / "events.jsonl")
    with pytest.raises(UserError, match=r"events\.jsonl: not a file"):
        check(Result(finished))


def test_what_a_run_leaves_is_sound(finished: Path) -> None:
    check(Result(finished))
    assert len(find([finished.parent])) == 2


def test_runs_that_are_not_finished_are_told_of(finished: Path) -> None:
    (finished / "summary.json").unlink()
    said: list[str] = []
    (kept,) = find([finished.parent], said.append)
    assert kept.directory.name == "good"
    assert said == [f"unfinished, so not in here: {finished} (`fedasmu resume {finished}` goes on with it)"]
    shutil.copytree(finished, finished.parent / "worse")
    find([finished.parent], said.append)
    assert said[1].startswith(f"unfinished, so not in here: {finished} and 1 more (")
    (finished / SERVED).write_text("{}")
    find([finished.parent], said.append)
    assert said[2].endswith(f"(`fedasmu serve --resume {finished}` goes on with it)")


def test_runs_of_times_alone_are_told_of(finished: Path) -> None:
    summary = finished / "summary.json"
    summary.write_text(json.dumps(json.loads(summary.read_text()) | {"data": "none"}))
    said: list[str] = []
    (kept,) = find([finished.parent], said.append)
    assert kept.directory.name == "good"
    assert said == ["1 run of times alone (timing_only), so not in here"]


def test_a_report_does_not_need_the_models(finished: Path) -> None:
    """They are most of what a study takes on disk."""
    before = [(run.score, run.fresh_bytes) for run in find([finished.parent])]
    for model in finished.parent.rglob("model.safetensors"):
        model.unlink()
    assert [(run.score, run.fresh_bytes) for run in find([finished.parent])] == before
    fetched = sum(event.get("fresh") is not None for event in Result(finished).events)
    assert fetched > 0
    assert {size for _, size in before} == {fetched * 4 * 42}


def test_a_report_of_runs_without_events_says_what_it_cannot_show(finished: Path, tmp_path: Path) -> None:
    """They are most of what a long study takes on disk without its models."""
    whole = write_report(finished.parent, tmp_path / "whole")
    (finished / "events.jsonl").unlink()
    said: list[str] = []
    bare = write_report(finished.parent, tmp_path / "bare", say=said.append)
    assert said == ["1 of 2 runs without events.jsonl: what is told from events is not shown of them"]
    tables = [(folder / "tables.md").read_text().split("**Communication") for folder in (whole, bare)]
    assert tables[0][0] == tables[1][0]
    assert "| - | - |" in tables[1][1]
    assert "| - | - |" not in tables[0][1]
    for path in finished.parent.rglob("events.jsonl"):
        path.unlink()
    assert '"told":false' in (write_report(finished.parent, tmp_path / "barest") / "report.html").read_text()


def test_a_result_names_its_broken_file(finished: Path) -> None:
    for name in ("config.toml", "summary.json", "events.jsonl", "model.safetensors", "metrics.csv"):
        (finished / name).write_text("\0{")
    result = Result(finished)
    for read, name in (
        (lambda: result.config, "config.toml"),
        (lambda: result.summary, "summary.json"),
        (lambda: list(result.events), "events.jsonl, line 1"),
        (lambda: result.state_dict, "model.safetensors"),
        (lambda: result.accuracy, "config.toml"),
        (lambda: result.best_score, "config.toml"),
        (lambda: result.time_to(0.5), "config.toml"),
    ):
        with pytest.raises(UserError, match=name):
            read()
    (finished / "config.toml").write_text("")
    with pytest.raises(UserError, match=r"metrics\.csv: no evaluation"):
        _ = Result(finished).score


def command(*arguments: str) -> int | str | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedasmu", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
    return ended.value.code


def test_one_broken_run_does_not_spoil_the_report(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (finished / "summary.json").write_text("{")
    assert command("report", str(finished.parent)) == 0
    assert f"left out: {finished / 'summary.json'}" in capsys.readouterr().out
    assert "good" in (finished.parent / "report" / "report.html").read_text()
    shutil.rmtree(finished.parent / "good")
    assert command("report", str(finished.parent)) == 2
    assert "no finished run there that can be read" in capsys.readouterr().err


HOSTILE = ["\x1b]0;owned\x07", r"$\frac{", "=cmd|calc", "+1", "a^b_c|d", "x" * 250, "\udcff"]


@pytest.mark.parametrize("label", HOSTILE)
def test_a_label_is_only_a_text(label: str, finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed, name in enumerate(("good", "bad")):
        place = finished.parent / label / f"seed-{seed}"
        place.parent.mkdir(exist_ok=True)
        (finished.parent / name).rename(place)
    assert command("report", str(finished.parent), "--out", str(finished.parent.parent / "out")) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    results = (finished.parent.parent / "out" / "results.csv").read_text()
    assert not any(line.split(",")[1].startswith(("=", "+")) for line in results.splitlines())


def test_a_method_is_only_a_text(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("good", "bad"):
        path = finished.parent / name / "summary.json"
        path.write_text(summary(method="[/bold]\x1b[5m")(path.read_text()))
    assert command("report", str(finished.parent)) == 0
    assert "[/bold]\ufffd[5m" in capsys.readouterr().out


def test_an_engine_is_only_a_text(finished: Path) -> None:
    path = finished / "summary.json"
    path.write_text(summary(engine="\x1b[5m", seed=1)(path.read_text()))
    config = finished / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 1", 1))
    report = write_report(finished.parent)
    assert "\ufffd[5m (1)" in (report / "tables.md").read_text()


def test_what_is_shown_and_written_is_harmless() -> None:
    assert printable("a\x1b[31mb\x9bc\u202ed\n") == "a\ufffd[31mb\ufffdc\ufffdd\n"
    assert escaped("a^b~c") == r"a\textasciicircum{}b\textasciitilde{}c"
    assert len(slug("y" * 300)) < 111
    assert slug("y" * 300) != slug("y" * 301)


def test_a_report_does_not_follow_links(finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    (finished.parent / "report").mkdir()
    (finished.parent / "report" / "tables.md").symlink_to(mine)
    assert command("report", str(finished.parent)) == 2
    assert "leads elsewhere" in capsys.readouterr().err
    assert mine.read_text() == "keep"


def test_the_page_of_what_can_be_read(finished: Path, tmp_path: Path) -> None:
    (finished / "events.jsonl").write_text("{}\n")
    assert "good" in write_page([finished.parent], tmp_path / "page.html").read_text()
