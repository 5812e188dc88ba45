"""A user's mistake is one clear message and exit code 2, before any training, and nothing is lost by it."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedasmu import Experiment, FederatedData, cli
from fedasmu.errors import UserError
from helpers.blobs import Run, blobs, settings, softmax
from helpers.repository import ROOT

RECIPE = """
model = "softmax"
[data]
name = "fashion-mnist-small"
[fleet]
devices = 20
[algorithm]
name = "fedasync"
[stop]
uploads = 5
"""

Fail = Callable[..., str]


@pytest.fixture
def fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fail:
    """fail("--set", "x=1") -> the message of a `fedasmu run` that must end with exit code 2 and train nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("fedasmu.data.places.SYSTEM_DIRECTORIES", ())
    monkeypatch.delenv("FEDASMU_DATA", raising=False)
    (tmp_path / "recipe.toml").write_text(RECIPE)

    def run(*arguments: str, recipe: str | None = "recipe.toml") -> str:
        start = ["run"] if recipe is None else ["run", recipe]
        monkeypatch.setattr(sys, "argv", ["fedasmu", *start, *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert ended.value.code == 2, captured
        assert "Traceback" not in captured.err + captured.out
        assert not list(tmp_path.glob("runs/**/metrics.csv")), "nothing was trained"
        return captured.err

    return run


SETTINGS = {
    "unknown key": ("local.epoch=3", ["local.epoch: unknown key", "did you mean local.epochs?"]),
    "unknown key, nothing near": ("local.qqqq=3", ["local.qqqq: unknown key", "allowed: batch, betas, calibrate"]),
    "unknown section": ("locale.lr=0.1", ["locale: unknown key", "did you mean local?"]),
    "unknown key of the method": ("algorithm.alhpa=0.5", ["algorithm.alhpa", "did you mean algorithm.alpha?"]),
    "key of another method": ("algorithm.buffer_size=5", ["algorithm.buffer_size: unknown key", "alpha"]),
    "key without its section": ("lr=0.1", ["lr: unknown key", "did you mean local.lr?"]),
    "key in the wrong section": ("data.epochs=1", ["did you mean local.epochs?"]),
    "key of two sections": ("alpha=1", ["did you mean data.alpha or algorithm.alpha?"]),
    "another word for a key": ("local.learning_rate=1", ["did you mean local.lr?"]),
    "typo in another section": ("data.epoch=1", ["did you mean local.epochs?"]),
    "several fleets without brackets": (
        "fleet.preset=het110,unreliable",
        ["  fleet.preset: several are a list", '"unreliable"]'],
    ),
    "one target": ("evaluate.targets=0.5", ["evaluate.targets = 0.5", "for instance [0.5]"]),
    "targets without brackets": ("evaluate.targets=0.6,0.7", ["for instance [0.6, 0.7]"]),
    "typo in a split": ("data.split=dirchlet", ["did you mean dirichlet?"]),
    "stand-in for other data": ("data.fallback=embedded", ["not for fashion-mnist-small: leave it out"]),
    "text for a number": ("local.epochs=abc", ['local.epochs = "abc"', "valid integer"]),
    "fraction for a whole number": ("local.epochs=1.5", ["local.epochs = 1.5", "integer"]),
    "list for a number": ("local.lr=[1]", ["local.lr = [1]", "valid number"]),
    "number for a section": ("local=5", ["local = 5: it is a section; set one of its keys: batch, betas,"]),
    "number for a section in another": ("data.columns=5", ["data.columns = 5: it is a section", "inputs, targets"]),
    "section into a number": ("local.lr.x=5", ["local.lr"]),
    "no epochs": ("local.epochs=0", ["local.epochs = 0", "greater than or equal to 1"]),
    "no batch": ("local.batch=0", ["local.batch = 0", "greater than or equal to 1"]),
    "no such accelerator": ("device=cuda:7", ["device = 'cuda:7'", "use device = 'cpu'"]),
    "negative learning rate": ("local.lr=-0.1", ["local.lr = -0.1", "greater than 0"]),
    "endless learning rate": ("local.lr=inf", ["local.lr = Infinity", "finite"]),
    "decay above 1": ("local.decay=1.1", ["local.decay = 1.1", "less than or equal to 1"]),
    "negative seed": ("seed=-1", ["seed = -1", "greater than or equal to 0"]),
    "no devices": ("fleet.devices=0", ["fleet.devices = 0", "greater than or equal to 1"]),
    "ratio below 1": ("fleet.slowest_over_fastest=0.5", ["fleet.slowest_over_fastest = 0.5"]),
    "infinite bandwidth": ("fleet.down_mbps=inf", ["fleet.down_mbps = Infinity", "finite"]),
    "link spread reversed": ("fleet.link_spread=[2, 1]", ["  fleet.link_spread = [2.0, 1.0]", "0 < low <= high"]),
    "link spread of one": ("fleet.link_spread=[2]", ["fleet.link_spread"]),
    "certain death": ("fleet.dropout=1", ["fleet.dropout = 1", "less than 1"]),
    "unknown fleet": ("fleet.preset=het111", ['  fleet.preset = "het111": unknown fleet; did you mean het110?']),
    "number for a fleet": ("fleet.preset=5", ["  fleet.preset = 5: unknown fleet", "base"]),
    "share above 1": ("pacing.max_in_flight=1.5", ["max_in_flight = 1.5", "at most 1.0"]),
    "text for a share": ("pacing.max_in_flight=abc", ['pacing.max_in_flight = "abc"', "valid number"]),
    "presets without quotes": (
        "fleet.preset=[het110,unreliable]",
        ["several are a list", '\'fleet.preset=["het110", "unreliable"]\''],
    ),
    "count with an exponent": ("local.epochs=1e3", ["local.epochs: a whole number is written", "exponent: 1000"]),
    "count that may be none": ("algorithm.max_staleness=2.0", ["algorithm.max_staleness: a whole number", ": 2"]),
    "truth for a count": ("stop.uploads=true", ["stop.uploads: true is not a number"]),
    "truth for a rate": ("local.lr=true", ["local.lr: true is not a number"]),
    "none, written otherwise": ("data.fallback=", ["input should be 'embedded', or none"]),
    "unknown pacing": ("pacing.preset=[1]", ["pacing.preset = [1]", "'text' or 'table'"]),
    "no period": ("pacing.period=0", ["pacing.period = 0", "greater than 0"]),
    "target above 1": ("evaluate.targets=[2.0]", ["evaluate.targets: [2.0]: an accuracy", "less than or equal to 1"]),
    "no uploads": ("stop.uploads=0", ["stop.uploads = 0"]),
    "name with a slash": ("name=../x", ['name = "../x": must be letters, digits']),
    "unknown method": (
        "algorithm.name=fedasinc",
        ["algorithm.name = 'fedasinc'", "did you mean fedasync?", "known:"],
    ),
    "method out of range": ("algorithm.alpha=2", ["algorithm.alpha = 2", "less than or equal to 1"]),
    "unknown staleness": ("algorithm.staleness=cubic", ["algorithm.staleness", "'constant', 'polynomial' or 'hinge'"]),
    "unknown model": ("model=lenet6", ["model.name: unknown model: 'lenet6'; did you mean lenet5? (allowed: "]),
    "unknown option of a model": ("model.colour=red", ["colour"]),
    "unknown data set": ("data.name=fashion-mnits", ["data.name: unknown data set 'fashion-mnits'", "fashion-mnist"]),
    "unknown split": ("data.split=random", ['data.split = "random"', "'dirichlet'"]),
    "split by unknown users": ("data.split=user", ["data.split = 'user'", "another split"]),
    "more devices than samples": ("fleet.devices=20000", ["20000", "10000 samples"]),
    "alpha too small": ("data.alpha=1e-6", ["alpha = 1e-06", "must be at least"]),
    "alpha not positive": ("data.alpha=0", ["data.alpha = 0", "greater than 0"]),
    "missing directory": ("data.dir=nowhere", ["data.dir = ", "nowhere: does not exist"]),
    "file for a directory": ("data.dir=recipe.toml", ["data.dir = ", "recipe.toml: is not a directory"]),
    "missing profiles": (
        "fleet.profiles=nowhere.csv",
        ["fleet.profiles: ", "nowhere.csv: cannot be read: No such file"],
    ),
    "missing trace": ("fleet.trace=nowhere.csv", ["nowhere.csv", "No such file"]),
    "module that is not there": (
        "model=nowhere:net",
        ["nowhere:net", "cannot import", "there is no module of that name in"],
    ),
    "data module that is not there": ("data.name=nowhere:data", ["data.name = 'nowhere:data'", "cannot import"]),
    "method that is none": (
        "algorithm.name=fedasmu.storage.shelf:Shelf",
        ["fedasmu.storage.shelf:Shelf", "not a subclass"],
    ),
    "method of Python's own": ("algorithm.name=pathlib:Path", ["pathlib:Path", "belongs to Python itself"]),
    "what the data decide": ("model.classes=3", ["model.classes: not an option of a model"]),
    "more memory than there is": ("model={name='mlp', hidden=100000000000}", ["model.name = 'mlp' failed"]),
    "unknown engine": ("engine=jax", ['engine = "jax"', "'native'"]),
    "device that is none": ("device=gpu", ['device = "gpu": must be cpu, cuda, cuda:N or mps']),
}


@pytest.mark.parametrize(("setting", "expected"), SETTINGS.values(), ids=SETTINGS.keys())
def test_a_bad_setting_names_its_key_and_what_is_allowed(setting: str, expected: list[str], fail: Fail) -> None:
    message = fail("--workers", "inline", "--set", setting)
    for text in expected:
        assert text in message


def test_all_mistakes_are_listed_at_once(fail: Fail) -> None:
    message = fail("--set", "local.lr=-1", "--set", "fleet.devices=0", "--set", "algorithm.alpha=9", "--set", "sede=1")
    for key in ("local.lr", "fleet.devices", "algorithm.alpha", "sede"):
        assert key in message


ARGUMENTS = {
    "no workers": (["--workers", "0"], ["--workers 0", "1 or more, inline, ray"]),
    "workers in words": (["--workers", "abc"], ["--workers abc", "1 or more, inline, ray"]),
    "negative workers": (["--workers", "-2"], ["--workers -2", "1 or more, inline, ray"]),
    "--set without a value": (["--set", "local.lr"], ["--set local.lr", "section.key=value"]),
    "--set without a key": (["--set", "=3"], ["--set =3", "section.key=value"]),
    "negative --seed": (["--seed", "-3"], ["seed = -3", "greater than or equal to 0"]),
    "failure of which run": (["--repeat-failure"], ["--resume DIR"]),
    "option without its value": (["--resume"], ["fedasmu run: --resume needs a value, as in --resume DIR: The same"]),
    "word for a number": (
        ["--budget", "small"],
        ["fedasmu run: invalid value for '--budget': 'small': input should", "fedasmu run -h`"],
    ),
    "one word too many": (["more"], ["fedasmu run: got unexpected extra argument", "(more)"]),
    "unknown tracker": (["--track", "tensorbord"], ["--track tensorbord", "did you mean tensorboard?"]),
    "recipe and --resume": (["--resume", "x"], ["either a recipe or --resume"]),
}


@pytest.mark.parametrize(("arguments", "expected"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_a_bad_argument_is_named(arguments: list[str], expected: list[str], fail: Fail) -> None:
    message = fail(*arguments)
    for text in expected:
        assert text in message


def test_a_mistake_is_told_where_it_was_made(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "wrong.toml").write_text("[algoritm]\nname = 'fedavg'\n[local]\nlr = -1\nmomentun = 1\nepochs = 2\n")
    message = fail("--set", "local.epochs=0", "--set", "sede=1", recipe="wrong.toml")
    changed, _, file = message.partition("wrong.toml:")
    assert "--set:" in changed
    assert "local.epochs = 0" in changed
    assert "sede: unknown key; did you mean seed?" in changed
    assert "algoritm: unknown key; did you mean algorithm?" in file
    assert "algorithm.name is missing" in file
    assert "local.lr = -1" in file


def test_a_missing_recipe(fail: Fail, tmp_path: Path) -> None:
    assert "did you mean quickstart?" in fail(recipe="quickstrat")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.toml").write_text("")
    assert "fedasmu resume old" in fail(recipe="old")
    assert "nowhere.toml: no such recipe" in fail(recipe="nowhere.toml")
    assert "give either a recipe" in fail(recipe=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model = [", "not valid TOML"),
        ("seed = 1\nseed = 2", "not valid TOML"),
        ("\xff", "not valid TOML"),
        ("seed = 1", "algorithm.name is missing"),
        ("algorithm = 3", "algorithm.name is missing"),
        ("[algorithm]\nalpha = 0.5", "algorithm.name is missing"),
        ("model = 3\nalgorithm = 'fedavg'", "model = 3"),
    ],
)
def test_a_bad_recipe(text: str, expected: str, fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(text, encoding="latin-1")
    message = fail(recipe="bad.toml")
    assert "bad.toml" in message
    assert expected in message


def test_an_override_of_a_method_given_by_its_name_alone(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "short.toml").write_text('algorithm = "fedasync"')
    assert "algorithm.alpha = 7" in fail("--set", "algorithm.alpha=7", recipe="short.toml")


BAD_FILES = {
    "empty profiles": ("fleet.profiles", "p.csv", "", "no device"),
    "damaged profiles": ("fleet.profiles", "p.json", "[{]", "cannot be read"),
    "too few profiles": (
        "fleet.profiles",
        "p.csv",
        "seconds_per_sample,down_mbps,up_mbps,latency\n1,1,1,1\n",
        "1 devices",
    ),
    "bad trace": ("fleet.trace", "t.csv", "device,start,end\n0,9,5\n", "line 2"),
    "trace without columns": ("fleet.trace", "t.csv", "1,2,3\n4,5,6\n", "device,start,end"),
}


@pytest.mark.parametrize(("key", "name", "text", "expected"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_named(key: str, name: str, text: str, expected: str, fail: Fail, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    message = fail("--set", f"{key}={name}")
    assert expected in message
    assert name in message or key in message


def test_missing_data_says_which_files_to_put_where(fail: Fail, tmp_path: Path) -> None:
    message = fail("--set", "data.name=fashion-mnist", "--set", "data.download=false")
    assert "train-images-idx3-ubyte" in message
    assert str(tmp_path / "cache") in message


HEADER = b"\x00\x00\x08\x03" + b"".join(size.to_bytes(4, "big") for size in (60_000, 28, 28))
DAMAGED = {
    "truncated": gzip.compress(HEADER + bytes(784 * 100)),
    "truncated while compressed": gzip.compress(os.urandom(10_000))[:5_000],
    "corrupt": gzip.compress(b"\x00\x00\x09\x01" + HEADER[4:] + bytes(784 * 100)),
    "empty": b"",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_data_file_is_named(content: bytes, fail: Fail, tmp_path: Path) -> None:
    folder = tmp_path / "fashion"
    folder.mkdir()
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        (folder / f"{name}-ubyte.gz").write_bytes(content)
    message = fail("--set", "data.name=fashion-mnist", "--set", f"data.dir={folder}", "--set", "data.download=false")
    assert f"{folder}/" in message
    assert "ubyte.gz" in message


def test_an_existing_run_is_not_touched(fail: Fail, run: Run, tmp_path: Path) -> None:
    kept = run(stop={"uploads": 5}).directory
    before = {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()}
    message = fail("--out", str(kept))
    assert f"out = {kept}" in message
    assert "(--out DIR), go on with it (`fedasmu resume DIR`), or replace it (--overwrite)" in message
    assert f"is inside of another run, {kept}" in fail("--out", str(kept / "deeper" / "still"))
    fail("--out", str(kept), "--overwrite", "--set", "local.lr=-1")
    fail("--out", str(kept), "--overwrite", "--set", "data.alpha=1e-6")
    fail("--out", str(kept), "--overwrite", "--workers", "0")
    assert {path.name: path.read_bytes() for path in kept.iterdir() if path.is_file()} == before


def test_an_occupied_directory_is_refused_before_the_data_are_read(
    fail: Fail, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedasmu.experiment.build", lambda *arguments: pytest.fail("it was built first"))
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "notes").write_text("")
    assert "there is something already" in fail("--out", "kept")
    assert "not a run directory" in fail("--out", "kept", "--overwrite")


def test_a_run_that_began_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    theirs = tmp_path / "run" / "config.toml"

    def slow() -> Any:
        theirs.parent.mkdir()
        theirs.write_text("of another run")
        return softmax()

    with pytest.raises(UserError, match="there is something already"):
        Experiment(settings(), model=slow, data=blobs()).run(tmp_path / "run")
    assert theirs.read_text() == "of another run"


def test_a_folder_that_is_no_run_is_never_removed(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("all of it")
    assert "not a run directory" in fail("--out", "thesis", "--overwrite")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "all of it"


def test_an_unwritable_run_directory(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "a directory" in fail("--out", "file/run", "--set", "data.dir=nowhere")  # before the data are looked for
    for place in ("file", "file/run", "/proc/run"):
        message = fail("--out", place)
        assert f"out = {place}: cannot be written" in message


def test_resume_of_what_is_not_a_run(fail: Fail, tmp_path: Path) -> None:
    assert "nowhere: nothing to resume there" in fail("--resume", "nowhere", recipe=None)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("model = [")
    assert "config.toml" in fail("--resume", "run", recipe=None)


@pytest.mark.parametrize("argument", [["--set", "local.lr=1"], ["--seed", "1"], ["--out", "x"], ["--overwrite"]])
def test_resume_goes_on_with_the_run_as_it_is(argument: list[str], fail: Fail) -> None:
    assert "--resume goes on with the run as it is" in fail("--resume", "x", *argument, recipe=None)


def test_resume_of_a_run_whose_model_was_given_in_python(fail: Fail, run: Run) -> None:
    directory = run(stop={"uploads": 5}).directory
    (directory / "summary.json").unlink()
    assert "model was given in Python" in fail("--resume", str(directory), "--workers", "inline", recipe=None)


def test_resume_of_a_directory_that_cannot_be_written(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "recipe.toml", tmp_path / "run" / "config.toml")
    (tmp_path / "run" / "events.jsonl").mkdir()
    assert "events.jsonl: cannot be written" in fail("--resume", "run", recipe=None)


OWN_MODELS = {
    "float64": ("nn.Linear(784, 10).double()", "only float32"),
    "wrong input": ("nn.Linear(3, 10)", "cannot take inputs of shape (1, 28, 28)"),
    "too few outputs": ("nn.Sequential(nn.Flatten(), nn.Linear(784, 3))", "10 classes"),
    "no shapes yet": ("nn.Sequential(nn.Flatten(), nn.LazyLinear(10))", "'1.weight' has no shape yet"),
    "nothing to train": ("nn.Flatten()", "no trainable parameter"),
    "not a module": ("5", "torch.nn.Module"),
}


@pytest.mark.parametrize(("made", "expected"), OWN_MODELS.values(), ids=OWN_MODELS.keys())
def test_a_model_of_your_own_that_does_not_fit(made: str, expected: str, fail: Fail, tmp_path: Path) -> None:
    module = f"own_{abs(hash(made))}"
    (tmp_path / f"{module}.py").write_text(f"from torch import nn\n\ndef net():\n    return {made}\n")
    message = fail("--set", f"model={module}:net", "--workers", "inline")
    assert expected in message


def test_data_of_your_own_that_do_not_fit(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "own_data_module.py").write_text("def data():\n    return 5\n")
    assert "must return a fedasmu.FederatedData" in fail("--set", "data.name=own_data_module:data")


def test_a_model_or_data_of_your_own_that_raise(fail: Fail, tmp_path: Path) -> None:
    (tmp_path / "raises_at_once.py").write_text("def f():\n    raise RuntimeError('no data today')\n")
    for setting in ("data.name=raises_at_once:f", "model=raises_at_once:f"):
        message = fail("--set", setting, "--workers", "inline")
        assert "failed: RuntimeError: no data today" in message
        assert "raises_at_once.py, line 2" in message


def pairs(count: int) -> tuple[Any, Any]:
    import torch

    return torch.zeros(count, 3), torch.arange(count) % 2


@pytest.mark.parametrize(
    ("train", "devices", "message"),
    [
        ((pairs(4)[0], pairs(5)[1]), [[0]], "4 inputs and 5 targets"),
        (pairs(4), [[0], []], r"devices\[1\] holds no example"),
        (pairs(4), [[0, 4]], r"devices\[0\] has indices outside 0..3"),
        (pairs(4), [], "devices is empty"),
        ((pairs(4)[0], pairs(4)[1] - 1), [[0]], "targets must be classes"),
    ],
)
def test_tensors_of_your_own_that_do_not_fit(train: Any, devices: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        FederatedData.of(train, pairs(4), devices)


@pytest.mark.parametrize(
    "arguments",
    [["run", "quickstart", "--set", "local.epoch=3"], ["run", "nowhere.toml"], ["data", "where", "nothing"]],
)
def test_the_same_from_a_shell(arguments: list[str], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "fedasmu", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())
