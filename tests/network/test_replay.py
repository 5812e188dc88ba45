"""A ledger played into a fresh server: the same files, and every upload signed by the device that had the task."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedasmu.cli import app
from fedasmu.errors import Refused, UserError
from fedasmu.network.folder import Folder
from fedasmu.network.rehearsal import write_shards
from fedasmu.network.replay import Replayed, replay
from helpers.federation import Federation
from helpers.said import said


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    """A finished run in which a device has changed its key."""
    federation = Federation(tmp_path_factory.mktemp("run"), stop={"uploads": 12}, network={"keep": "all"})
    federation.start()
    for number in range(3):
        federation.device(number).join()
    first = federation.devices[0]
    while not first.step():
        pass
    first.close()
    again = federation.device(0, new_key=True)
    again.join()
    for device in (again, *federation.devices[1:3]):
        federation.work(device)
    federation.wait()
    return federation


def played(run: Federation) -> Replayed:
    return replay(run.world, Folder(run.path))


def test_the_ledger_is_the_run(run: Federation) -> None:
    found = played(run)
    assert (found.unsigned, found.differing, found.finished) == ([], [], True)
    assert found.uploads >= 12
    assert len(run.folder.register.keys(0)) == 2


def test_a_file_that_was_changed_is_named(run: Federation) -> None:
    path = run.path / "metrics.csv"
    kept = path.read_bytes()
    path.write_bytes(kept.replace(b"0.", b"1.", 1))
    assert played(run).differing == ["metrics.csv"]
    path.write_bytes(kept)


def test_an_upload_that_another_key_signed_is_named(run: Federation) -> None:
    database = run.folder.register._database
    (kept,) = database.execute("SELECT key FROM seats WHERE seat = 1").fetchone()
    database.execute("UPDATE seats SET key = ? WHERE seat = 1", (bytes(32),))
    found = played(run)
    assert found.unsigned
    assert len(found.unsigned) < found.uploads, "those of the other devices are good"
    database.execute("UPDATE seats SET key = ? WHERE seat = 1", (kept,))


def test_what_keeps_only_what_a_restart_needs_cannot_be_replayed(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 3})
    federation.run()
    (first,) = (federation.path / "ledger").glob("*.log")
    first.rename(first.with_name("000000000005.log"))
    with pytest.raises(UserError, match=r"network\.keep = \"all\""):
        played(federation)


def test_a_folder_called_as_the_package_is_not_taken_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison has one, fedasmu/seed-0; here it would even be a package."""
    (tmp_path / "fedasmu").mkdir()
    (tmp_path / "fedasmu" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    small = ["--devices", "2", "--uploads", "2", "--set", "model.name=softmax", "--out", str(tmp_path / "run")]
    result = CliRunner().invoke(app, ["rehearse", "quickstart", *small])
    assert result.exit_code == 0, result.output


def test_a_device_that_cannot_go_on_ends_the_rehearsal_with_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: object) -> list[Path]:
        paths = write_shards(*given)  # type: ignore[arg-type]
        paths[0].write_text("no examples")
        return paths

    monkeypatch.setattr("fedasmu.network.rehearsal.write_shards", broken)
    small = ["--devices", "2", "--set", "model.name=softmax", "--out", str(tmp_path / "run")]
    words = said("rehearse", "quickstart", *small)
    assert "a device ended" in words
    assert "data.npz" in words


def test_the_command_plays_a_run_again_and_names_what_was_changed(tmp_path: Path) -> None:
    out = tmp_path / "run"
    small = ["--set", "model.name=softmax", "--set", "network.keep=all", "--set", "fleet.devices=2"]
    command = [sys.executable, "-m", "fedasmu", "rehearse", "quickstart", "--devices", "2", "--uploads", "4", *small]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    result = CliRunner().invoke(app, ["replay", str(out)])
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "4 uploads; model " in words
    assert "every upload is signed by its device; events.jsonl, metrics.csv, model.safetensors are the same" in words
    events = out / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b"accepted", b"refused", 1))
    result = CliRunner().invoke(app, ["replay", str(out)])
    assert isinstance(result.exception, Refused)
    assert str(result.exception) == "not what the run has left: events.jsonl"
    assert "not the folder of a served run" in said("replay", str(tmp_path))
