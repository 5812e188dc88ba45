"""The commands as a user types them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fedasmu import Result, __version__, cli, data
from fedasmu.errors import Interrupted
from helpers.blobs import outputs
from helpers.idx_files import small, write

RECIPE = """
# Softmax regression on the images that come with the package.
model = "softmax"
[data]
name = "fashion-mnist-small"
[fleet]
devices = 20
[local]
epochs = 1
lr = 0.05
[algorithm]
name = "fedasync"
[evaluate]
every = 5
targets = [0.3, 0.99]
[stop]
uploads = 20
"""

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def fedasmu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """fedasmu("list", "methods") -> (exit code, output)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "recipe.toml").write_text(RECIPE)

    def call(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["fedasmu", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_ctrl_c_while_torch_is_imported_is_one_word(tmp_path: Path) -> None:
    """A torch that takes its time and, as extensions may, makes something else of the interrupt."""
    slow = "import time\ntry:\n    time.sleep(300)\nexcept KeyboardInterrupt:\n    raise SystemError('no extension')\n"
    (tmp_path / "torch.py").write_text(slow)
    command = [sys.executable, "-m", "fedasmu", "run", "quickstart"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, env=environment, cwd=tmp_path, stdout=pipe, stderr=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading PyTorch ...\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120) == ("", "stopped\n")
    assert process.returncode == 130


@pytest.mark.parametrize("how", [Interrupted, KeyboardInterrupt])
def test_ctrl_c_is_one_word_where_a_command_has_nothing_to_go_on_with(
    fedasmu: Command, monkeypatch: pytest.MonkeyPatch, how: type[BaseException]
) -> None:
    """`check` among them: its small runs are gone with it."""

    def stopped(trial: object) -> None:
        raise how

    monkeypatch.setattr("fedasmu.conformance.CHECKS", [stopped])
    code, output = fedasmu("check", "fedavg")
    assert (code, output.split()) == (130, ["stopped"])


def test_a_run_ends_in_a_table_its_directory_and_a_picture(fedasmu: Command, tmp_path: Path) -> None:
    code, output = fedasmu("run", "recipe.toml", "--workers", "2")
    assert code == 0
    for text in ("fedasync on fashion-mnist-small, seed 0", "best accuracy", "virtual time to 0.3", "mean staleness"):
        assert text in output
    assert "not reached" in output  # the target of 0.99
    assert "run directory: runs/recipe" in output
    picture = tmp_path / "runs" / "recipe" / "accuracy.png"
    assert f"curve:         {picture.relative_to(tmp_path)}" in output
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = Result(tmp_path / "runs" / "recipe")
    assert result.summary["uploads"] == 20
    assert result.curve["accuracy"][-1] > 0.3


def test_a_run_leaves_all_its_files(fedasmu: Command, tmp_path: Path) -> None:
    assert fedasmu("run", "recipe.toml", "--workers", "inline", "--out", "here")[0] == 0
    names = {path.name for path in (tmp_path / "here").iterdir()}
    files = {"config.toml", "fleet.csv", "events.jsonl", "metrics.csv", "model.safetensors", "summary.json"}
    assert names == files | {"accuracy.png", "checkpoint", "wall.csv", ".lock"}
    assert Result(tmp_path / "here").config["local"]["decay"] == 0.99  # complete, with all defaults


def test_seed_set_and_overwrite(fedasmu: Command, tmp_path: Path) -> None:
    line = ["run", "recipe.toml", "--workers", "inline", "--set", "timing_only=true", "--out", "here"]
    assert fedasmu(*line, "--seed", "7", "--set", "stop.uploads=5")[0] == 0
    assert Result(tmp_path / "here").config["seed"] == 7
    assert fedasmu(*line)[0] == 2
    code, output = fedasmu(*line, "--overwrite")
    assert code == 0
    assert "curve" not in output  # nothing was trained, so there is none
    assert Result(tmp_path / "here").summary["uploads"] == 20


def test_resume_of_a_finished_run_shows_it_again(fedasmu: Command) -> None:
    line = ["run", "recipe.toml", "--workers", "inline", "--set", "timing_only=true"]
    assert fedasmu(*line)[0] == 0
    code, output = fedasmu("run", "--resume", "runs/recipe")
    assert code == 0
    assert "finished already" in output
    assert "uploads received" in output


def test_a_device_that_fails_is_shown_with_the_command_that_repeats_it(
    fedasmu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fragile_net.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, inputs):\n"
        "        if self.training: raise RuntimeError('a bug in a model')\n"
        "        return super().forward(inputs.flatten(1))\n"
        "def net(): return Net(784, 10)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    code, output = fedasmu("run", "recipe.toml", "--set", "model=fragile_net:net", "--workers", "1")
    assert code == 1
    assert "Train failed on device" in output
    assert "RuntimeError: a bug in a model" in output
    assert "repeat it alone: fedasmu resume runs/recipe --allow-code --repeat-failure" in output
    with pytest.raises(RuntimeError, match="a bug in a model"):
        fedasmu("run", "--resume", "runs/recipe", "--allow-code", "--repeat-failure")


def test_paths_are_never_broken_over_lines(fedasmu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    long = "a-directory-with-a-name-[bold]-" + "x" * 60
    code, output = fedasmu("run", "recipe.toml", "--set", "timing_only=true", "--workers", "inline", "--out", long)
    assert code == 0
    assert f"run directory: {long}\n" in output
    code, output = fedasmu("run", "recipe.toml", "--out", long)
    assert f"error: out = {long}: there is something already" in output
    code, output = fedasmu("run", "--resume", long)
    assert f"{long} is finished already\n" in output
    code, output = fedasmu("data", "where", "mnist", "--dir", long)
    assert f"{long}\n" in output


@pytest.mark.parametrize("what", ["methods", "models", "datasets", "recipes", "fleets"])
def test_lists_as_a_table_and_as_json(what: str, fedasmu: Command) -> None:
    known = {
        "methods": "fedavg",
        "models": "lenet5",
        "datasets": "fashion-mnist-small",
        "recipes": "quickstart",
        "fleets": "het110",
    }[what]
    code, table = fedasmu("list", what)
    assert code == 0
    assert known in table
    code, text = fedasmu("list", what, "--json")
    rows = json.loads(text)
    assert code == 0
    assert known in [row["name"] for row in rows]
    assert all(row["description"] for row in rows)


def test_a_recipe_is_listed_with_the_options_of_its_model(fedasmu: Command) -> None:
    models = {row["name"]: row["model"] for row in json.loads(fedasmu("list", "recipes", "--json")[1])}
    assert models["vgg-cifar-10"] == 'vgg11, init = "he"'
    assert models["quickstart"] == "lenet5"


def test_list_of_something_else(fedasmu: Command) -> None:
    code, output = fedasmu("list", "pets")
    assert code == 2
    assert "methods" in output


def test_what_is_typed_is_told_as_it_was_typed(fedasmu: Command) -> None:
    assert "a:smile:b.toml" in fedasmu("run", "a:smile:b.toml")[1]


def test_a_study_without_anything_to_run_is_refused(fedasmu: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedasmu.data.is_here", lambda name: False)
    code, output = fedasmu("reproduce", "asynchrony", "--out", "nothing")
    assert code == 2
    told = "nothing to run: fashion-mnist is not on this machine: `fedasmu data prepare fashion-mnist` gets it"
    assert f"error: {told}" in output.replace("\n", " ")
    assert not Path("nothing").exists()


def test_where_data_are_looked_for(fedasmu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDASMU_DATA", raising=False)
    monkeypatch.setattr("fedasmu.data.places.SYSTEM_DIRECTORIES", (tmp_path / "system",))
    code, output = fedasmu("data", "where", "fashion-mnist", "--dir", str(tmp_path))
    assert code == 0
    assert str(tmp_path) in output
    assert str(tmp_path / "cache") in output
    assert output.endswith("not found; fedasmu data prepare fashion-mnist gets it\n")
    code, output = fedasmu("data", "where", "fashion-mnist-small")
    assert "found" in output
    signals = tmp_path / "train" / "Inertial Signals"
    signals.mkdir(parents=True)
    (signals / "body_acc_x_train.txt").touch()
    code, output = fedasmu("data", "where", "uci-har", "--dir", str(tmp_path))
    assert f"part  {tmp_path}, which lacks train/Inertial Signals/body_acc_y_train.txt" in " ".join(output.split("\n"))
    assert "more" in output


def test_preparing_data_says_what_they_are(fedasmu: Command) -> None:
    code, output = fedasmu("data", "prepare", "fashion-mnist-small")
    assert code == 0
    assert "10,000 training and 2,000 test examples of shape 1x28x28, 10 classes" in output


def test_a_named_folder_that_was_passed_over_is_told(
    fedasmu: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = data.load(small("mnist"), write(tmp_path / "theirs" / "mnist", "mnist"))
    monkeypatch.setattr(data, "prepare", lambda *arguments, **options: read)
    (tmp_path / "linked").symlink_to(tmp_path / "theirs")
    (tmp_path / "others" / "cifar-10-batches-bin").mkdir(parents=True)
    (tmp_path / "part" / "mnist").mkdir(parents=True)
    (tmp_path / "part" / "mnist" / "train-labels-idx1-ubyte").touch()
    for place in ("theirs", str(tmp_path / "theirs" / "mnist"), "linked"):
        code, output = fedasmu("data", "prepare", "mnist", "--dir", place)
        assert code == 0
        assert "passed over" not in output
    code, output = fedasmu("data", "prepare", "mnist", "--dir", "mine")
    assert "mine does not hold all of mnist, so it was passed over" in output
    cases = {
        "nowhere": "FEDASMU_DATA = nowhere: does not exist, so it was passed over",
        "recipe.toml": "FEDASMU_DATA = recipe.toml: is not a directory, so it was passed over",
        "part": "part does not hold all of mnist, so it was passed over",
        "others": "",
        "theirs": "",
    }
    for place, said in cases.items():
        monkeypatch.setenv("FEDASMU_DATA", place)
        code, output = fedasmu("data", "prepare", "mnist")
        assert said in output
        assert ("passed over" in output) == bool(said)


@pytest.mark.parametrize(
    ("command", "example"),
    [
        ([], "fedasmu run quickstart"),
        (["run"], "fedasmu run quickstart"),
        (["resume"], "fedasmu resume runs/quickstart"),
        (["list"], "fedasmu list methods --json"),
        (["data", "where"], "fedasmu data where fashion-mnist"),
        (["data", "prepare"], "fedasmu data prepare fashion-mnist"),
    ],
)
def test_help_shows_an_example(command: list[str], example: str, fedasmu: Command) -> None:
    code, output = fedasmu(*command, "--help")
    assert code == 0
    assert example in output


def test_what_help_says_after_its_options_is_broken_by_the_terminal_alone(
    fedasmu: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = [line.rstrip() for line in fedasmu("run", "--help")[1].splitlines()]
    begun = lines.index(" time: virtual seconds. version: of the global model. uploads: received so far.")
    assert lines[begun + 1] == " accuracy (or the recipe's metric), loss: on the test data."


def test_a_finished_run_is_extended(fedasmu: Command, tmp_path: Path) -> None:
    short = ("recipe.toml", "--workers", "inline", "--set")
    assert fedasmu("run", *short, "stop.uploads=7", "--out", "short")[0] == 0
    code, output = fedasmu("resume", "short", "--uploads", "12", "--workers", "inline")
    assert code == 0
    assert "begins anew" not in output
    assert fedasmu("run", *short, "stop.uploads=12", "--out", "long")[0] == 0
    assert outputs(Result(tmp_path / "short")) == outputs(Result(tmp_path / "long"))
    assert "is finished already" in fedasmu("resume", "short", "--workers", "inline")[1]


OPTIONS = {
    ("run", "--methods"): "`fedasmu compare RECIPE --methods a,b` runs several",
    ("run", "--algorithm"): "--set algorithm.name=NAME",
    ("run", "--dry-run"): "timing_only=true",
    ("run", "-o"): "--out DIR",
    ("run", "--lr"): "did you mean --set local.lr=VALUE?",
    ("run", "--batch-size"): "did you mean --set local.batch=VALUE?",
    ("compare", "--budgte"): "did you mean --budget?",
    ("report", "--qqq"): "it has --out, --reference",
}


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_an_unknown_option_says_what_was_meant(command: str, option: str, fedasmu: Command) -> None:
    code, output = fedasmu(command, "recipe.toml", option, "1")
    assert code == 2
    assert f"no such option: {option}" in output
    assert OPTIONS[command, option] in output


def test_methods_are_separated_by_commas(fedasmu: Command) -> None:
    code, output = fedasmu("compare", "recipe.toml", "--methods", "fedasmu", "fedavg")
    assert code == 2
    assert "a list is written with commas" in output


def test_a_list_of_methods_with_a_typo(fedasmu: Command) -> None:
    code, output = fedasmu("compare", "recipe.toml", "--methods", "ablatoin")
    assert code == 2
    assert "did you mean ablation?" in output


def test_a_method_named_twice_runs_once(fedasmu: Command) -> None:
    short = ("--seeds", "1", "--set", "stop.uploads=3", "--workers", "inline", "--out", "twice")
    code, output = fedasmu("compare", "recipe.toml", "--methods", "fedavg,fedavg", *short)
    assert code == 0
    assert "names fedavg twice" in output
    assert "fedasmu report twice" in output


def test_a_word_appears_before_torch_is_imported(tmp_path: Path) -> None:
    """The import is stopped where it begins: what is on the screen by then was there before it."""
    (tmp_path / "torch.py").write_text("raise SystemExit(77)")
    line = [sys.executable, "-c", "import sys; sys.path.insert(0, ''); from fedasmu.cli import main; main()"]
    done = subprocess.run([*line, "run", "quickstart"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 77
    assert done.stdout == "loading PyTorch ...\n"


def test_version(fedasmu: Command) -> None:
    assert fedasmu("--version") == (0, f"{__version__}\n")


def test_a_further_name_of_a_method_says_what_it_stands_for(fedasmu: Command) -> None:
    _, output = fedasmu("list", "methods", "--json")
    described = {row["name"]: row["description"] for row in json.loads(output)}
    assert described["fedasmu-0"] == 'fedasmu with server_weights = "polynomial", merge = false'
    assert described["syncdrop"] == "another name of asyncdrop"
    assert described["fedavg"].startswith("A cohort trains")
