"""After a resume, what was written before is what was written then; or the user is told which file is not."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch

from fedasmu import Experiment, Result
from fedasmu.errors import Interrupted, Refused, UserError
from fedasmu.storage.checkpoint import load
from fedasmu.storage.shelf import Shelf
from fedasmu.system.disk import replaced
from helpers.blobs import blobs, outputs, settings, softmax

HALF: dict[str, Any] = {}


def experiment(**changes: Any) -> Experiment:
    table = settings(algorithm={"name": "ca2fl"}, stop={"uploads": 40}, checkpoint_seconds=1e9, **changes)
    return Experiment(table, model=softmax, data=blobs())


def at(upload: int) -> Callable[[Any, Any], None]:
    """Ctrl-C at this upload, once: a second one would end the process."""
    asked: list[bool] = []

    def stop(desk: Any, line: Any) -> None:
        if desk.server.counters.received == upload and not asked:
            asked.append(True)
            signal.raise_signal(signal.SIGINT)

    return stop


@pytest.fixture
def half(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in its middle, with two checkpoints; a copy for every test."""
    if not HALF:
        whole = tmp_path_factory.mktemp("half")
        HALF["expected"] = outputs(experiment().run(whole / "whole"))

        for upload in (15, 25):
            with pytest.raises(Interrupted):
                experiment().run(whole / "run", resume=upload > 15, observe=at(upload))
        HALF["run"] = whole / "run"
    shutil.copytree(HALF["run"], tmp_path / "run")
    return tmp_path / "run"


def resume(run: Path, said: list[str]) -> Result:
    return Experiment.of_run(run, model=softmax, data=blobs()).run(run, resume=True, say=said.append)


def flip(path: Path, place: int = -3) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def named(run: Path) -> dict[str, list[str]]:
    """The shelf files of each checkpoint."""
    found = {}
    for path in sorted((run / "checkpoint").iterdir()):
        text = (path / "state.json").read_text()
        found[path.name] = [file.name for file in (run / "shelves").rglob("*.*") if file.name in text]
    return found


def test_an_untouched_run_ends_in_the_same_bytes(half: Path) -> None:
    said: list[str] = []
    assert outputs(resume(half, said)) == HALF["expected"]
    assert not any("damaged" in line for line in said)


@pytest.mark.parametrize("name", ["events.jsonl", "metrics.csv"])
@pytest.mark.parametrize("place", [10, -200])
def test_a_flipped_bit_in_what_was_recorded_is_refused(name: str, place: int, half: Path) -> None:
    flip(half / name, place)
    with pytest.raises(UserError, match=f"{name}: not what the run had written"):
        resume(half, [])


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_shelf_file_is_a_damaged_checkpoint(how: str, half: Path) -> None:
    (_, older), (_, newer) = named(half).items()
    path = next(path for path in (half / "shelves").rglob("*.*") if path.name in set(newer) - set(older))
    if how == "flipped":
        flip(path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.unlink()
    said: list[str] = []
    assert outputs(resume(half, said)) == HALF["expected"]
    assert sum("damaged checkpoint" in line and path.name in line for line in said) == 1


def test_if_both_checkpoints_are_damaged_nothing_goes_on(half: Path) -> None:
    for path in (half / "shelves").rglob("*.*"):
        flip(path)
    with pytest.raises(UserError, match="no checkpoint can be read"):
        resume(half, [])


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("lr = 0.1", "lr = 0.2", "local.lr"),
        ("seed = 0", "seed = 1", "seed"),
        ("uploads = 40", "uploads = 30", "stop.uploads"),
        ("period = 1.0", "period = 2.0", "pacing.period"),
        ("batch = 8", "batch = 4", "local.batch"),
        ("epochs = 2", "epochs = 1", "local.epochs"),
        ("every = 5", "every = 4", "evaluate.every"),
        ("dropout = 0.0", "dropout = 0.1", "fleet.dropout"),
        ('engine = "auto"', 'engine = "torch"', "engine"),
        ("latency = 0.05", "latency = 0.06", "fleet.latency"),
    ],
)
def test_a_changed_setting_is_refused_by_its_name(old: str, new: str, key: str, half: Path) -> None:
    path = half / "config.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=f"config.toml: {key} is "):
        resume(half, [])


def test_the_checkpoint_of_another_run_is_refused(half: Path, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        experiment(local={"lr": 0.05}).run(tmp_path / "other", observe=at(25))
    shutil.rmtree(half / "checkpoint")
    shutil.copytree(tmp_path / "other" / "checkpoint", half / "checkpoint")
    with pytest.raises(UserError):
        resume(half, [])


def forged(run: Path, name: str) -> None:
    """Both checkpoints name this file of a shelf, and have a right digest."""
    for place in (run / "checkpoint").iterdir():
        state, tensors = json.loads((place / "state.json").read_text()), (place / "tensors.safetensors").read_bytes()
        text = json.dumps(_renamed(state, name)).encode()
        (place / "state.json").write_bytes(text)
        (place / "sha256").write_text(sha256(text + tensors).hexdigest())


def _renamed(node: Any, name: str) -> Any:
    if isinstance(node, dict) and {"shelf", "files"} <= node.keys():
        return node | {"files": dict.fromkeys(node["files"], name)}
    if isinstance(node, dict):
        return {key: _renamed(value, name) for key, value in node.items()}
    return [_renamed(value, name) for value in node] if isinstance(node, list) else node


def test_a_hostile_checkpoint_names_nothing_outside(half: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("keep")
    for name in (str(mine), "../../../mine.txt", "1.2.float32." + "0" * 32 + "/../../../../mine.txt"):
        forged(half, name)
        with pytest.raises(UserError, match="no checkpoint can be read"):
            resume(half, [])
    assert mine.read_text() == "keep"


@pytest.mark.parametrize(
    "name", ["events.jsonl", "metrics.csv", "fleet.csv", "checkpoint", "shelves", "shelves/server"]
)
def test_links_in_a_run_directory_are_not_followed(name: str, half: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.move(half / name, mine)
    (half / name).symlink_to(mine)
    before = mine.read_bytes() if mine.is_file() else sorted(os.listdir(mine))
    with pytest.raises(UserError, match=f"{name}: a link"):
        resume(half, [])
    assert (mine.read_bytes() if mine.is_file() else sorted(os.listdir(mine))) == before


def test_a_shelf_notices_what_changed_under_its_feet(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    shelf.put(1, torch.ones(500))
    (path,) = tmp_path.iterdir()
    flip(path)
    with pytest.raises(Refused, match="not what was written there"):
        shelf.get(1)
    with pytest.raises(ValueError, match="not the name of a file"):
        shelf.restore({"files": {"1": "/etc/passwd"}, "written": 1})


def test_a_file_is_replaced_whole_and_a_link_with_it(tmp_path: Path) -> None:
    mine, place = tmp_path / "mine", tmp_path / "place"
    mine.write_text("keep")
    place.symlink_to(mine)
    place.with_name("place.part").symlink_to(mine)
    with replaced(place) as path:
        path.write_text("new")
    assert (mine.read_text(), place.read_text(), place.is_symlink()) == ("keep", "new", False)


def test_what_the_check_finds_damaged_is_passed_over(half: Path) -> None:
    def check(tree: Any) -> None:
        raise ValueError("never good enough")

    with pytest.raises(UserError, match="no checkpoint can be read"):
        load(half / "checkpoint", list[str]().append, check)
