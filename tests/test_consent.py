"""A recipe, a run directory or a tuned.json that names code is believed only with the user's word."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedasmu import Experiment, cli
from fedasmu.errors import UserError
from fedasmu.imports import load
from fedasmu.settings.recipe import load as load_recipe
from fedasmu.study import sweep
from helpers.blobs import settings

TRAP = """
from pathlib import Path

Path("imported").touch()

def trap(**options):
    Path("called").touch()

def network():
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""
PLAIN = {"model": '"softmax"', "data": '{name = "fashion-mnist-small"}', "algorithm": '"fedasync"'}
CODE = {"model": '{name = "trap:trap"}', "data": '{name = "trap:trap"}', "algorithm": '{name = "trap:trap"}'}

Command = Callable[..., tuple[int | str | None, str]]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """command("run", "r.toml") -> its exit code and all that it said, in a folder with a module that leaves traces."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "trap", raising=False)
    (tmp_path / "trap.py").write_text(TRAP)

    def run(*arguments: str) -> tuple[int | str | None, str]:
        monkeypatch.setattr(sys, "argv", ["fedasmu", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code, said.out + said.err

    return run


def write(path: Path, **changes: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = [f"{key} = {value}" for key, value in (PLAIN | changes).items()]
    path.write_text("\n".join([*lines, "stop = {uploads = 3}", "fleet = {devices = 20}"]))
    return path


@pytest.mark.parametrize("key", ["model", "data", "algorithm"])
@pytest.mark.parametrize("how", ["run r.toml", "run --resume run", "compare r.toml", "sweep r.toml --grid local.lr=1"])
def test_code_that_a_file_names_does_not_run_unasked(key: str, how: str, command: Command, tmp_path: Path) -> None:
    for path in (tmp_path / "r.toml", tmp_path / "run" / "config.toml"):
        write(path, **{key: CODE[key]})
    code, said = command(*how.split())
    assert code == 2
    assert f"names code, which would run on this machine: {key}.name = 'trap:trap'" in said
    assert "--allow-code" in said
    assert not (tmp_path / "imported").exists()
    assert not (tmp_path / "runs").exists()


def test_with_the_users_word_it_runs_and_so_does_its_resume(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "r.toml", model='"trap:network"')
    assert command("run", "r.toml", "--allow-code", "--workers", "inline", "--out", "run")[0] == 0
    (tmp_path / "run" / "summary.json").unlink()
    assert command("run", "--resume", "run")[0] == 2
    assert command("run", "--resume", "run", "--allow-code", "--workers", "inline")[0] == 0


def test_what_the_user_types_or_replaces_needs_no_asking(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "plain.toml")
    write(tmp_path / "own.toml", model='"trap:trap"')
    assert command("run", "plain.toml", "--set", "model=trap:network", "--workers", "inline", "--out", "a")[0] == 0
    assert command("run", "own.toml", "--set", "model=softmax", "--workers", "inline", "--out", "b")[0] == 0
    assert not (tmp_path / "called").exists()


def test_a_method_is_not_loaded_just_to_be_replaced(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "own.toml", algorithm='"trap:trap"')
    run = ("run", "own.toml", "--workers", "inline", "--out", "a")
    assert command(*run, "--set", "algorithm=fedavg", "--set", "algorithm.name=fedasync")[0] == 0
    assert not (tmp_path / "imported").exists()


def test_settings_in_python_need_no_asking() -> None:
    assert Experiment(settings(model={"name": "trap:network"})).config.code == {"model": "trap:network"}


def test_a_run_directory_brings_no_modules_of_its_own(command: Command, tmp_path: Path) -> None:
    write(tmp_path / "run" / "config.toml", data='{name = "trap:trap"}')
    shutil.move(tmp_path / "trap.py", tmp_path / "run" / "trap.py")
    for place in (tmp_path / "run", tmp_path / "run" / "below"):
        place.mkdir(exist_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(place)
            code, said = command("run", "--resume", str(tmp_path / "run"), "--allow-code")
        assert code == 2
        assert "code is not taken from a run directory" in said
    assert not list(tmp_path.rglob("imported"))


def test_tuned_settings_from_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps({"best": {"fedavg": ["local.lr=0.1", "model.name=os:system"]}}))
    with pytest.raises(UserError, match=r"tuned.json names code.*model.name = 'os:system'"):
        sweep.read(path)
    assert sweep.read(path, allow_code=True)["fedavg"][1] == "model.name=os:system"


def test_some_names_may_be_trusted_and_no_others(tmp_path: Path) -> None:
    path = write(tmp_path / "r.toml", model='"my:net"', data='{name = "my:data"}')
    assert set(load_recipe(path, allow_code=["my:net", "my:data"]).code) == {"model", "data"}
    with pytest.raises(UserError, match=r"machine: data.name = 'my:data'\."):
        load_recipe(path, allow_code=["my:net"])


OTHERS = """
from functools import partial
from os import system
from shutil import rmtree as network

made = partial(dict, a=1)
number = 5

def fine():
    return 1
"""


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("os:system", "belongs to Python itself"),
        ("importlib.util:find_spec", "belongs to Python itself"),
        ("others:system", "not defined in others: give it a def"),
        ("others:network", "not defined in others: give it a def"),
        ("others:made", "not defined in others: give it a def"),
        ("others:number", "not callable"),
        ("fedasmu.algorithms:FedAvg", r"write fedasmu.algorithms.fedavg:FedAvg"),
        ("torn:f", r"cannot import 'torn' for 'torn:f': SyntaxError"),
        ("raising:f", r"RuntimeError: not today \(.*raising.py, line 1\)"),
    ],
)
def test_only_what_a_module_defines_is_loaded(
    path: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "others.py").write_text(OTHERS)
    (tmp_path / "torn.py").write_text("def f(:\n")
    (tmp_path / "raising.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "others", raising=False)
    assert load("others:fine")() == 1
    with pytest.raises(ValueError, match=message):
        load(path)


def test_the_current_folder_stands_in_for_nothing_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine_alone.py").write_text("def f():\n    return 1\n")
    assert load("mine_alone:f")() == 1
    assert sys.path[-1] == str(tmp_path)
