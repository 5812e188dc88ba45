"""A user's mistakes with the network: one sentence each, on the side where the user is."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from typer.testing import CliRunner

from fedasmu.cli import app
from fedasmu.commands import hosts
from fedasmu.errors import Refused, UserError
from fedasmu.network import wire
from fedasmu.network.connection import Reply
from fedasmu.network.device import Device
from fedasmu.network.equipment import Equipment
from fedasmu.network.keys import Invite
from fedasmu.network.listener import bound
from fedasmu.network.own import Own, source
from fedasmu.network.terms import Terms
from fedasmu.protocol import Model
from helpers.blobs import blobs
from helpers.federation import Federation, network
from helpers.said import said

INVITE = str(Invite.new(bytes([7]) * 32))


def test_serve(tmp_path: Path) -> None:
    assert "either a recipe or --resume" in said("serve")
    for wrong in ("8443", "host:", ":x", "host:²", "1.2.3.4:99999"):
        assert f"--listen {wrong}: write it as ADDRESS:PORT" in said("serve", "quickstart", "--listen", wrong)
    taken = bound("127.0.0.1", 0)
    address = f"127.0.0.1:{taken.getsockname()[1]}"
    assert "already in use" in said("serve", "quickstart", "--listen", address, "--out", str(tmp_path / "a"))
    assert not (tmp_path / "a").exists(), "nothing was begun"
    taken.close()
    assert "not the folder of a served run" in said("serve", "--resume", str(tmp_path))
    for wrong in ("m\u00fcnchen.example", "a b", "host:", "fe80::1", "-x.example"):
        told = said("serve", "quickstart", "--listen", "127.0.0.1:0", f"--name={wrong}", "--out", str(tmp_path / "b"))
        assert told.startswith(f"--name {wrong}: write the host as devices are to reach it")
    for change in ("timing_only=true", "attack.share=0.2", "instructions=avx2", "local.loss=mse"):
        options = ("--set", change, "--listen", "127.0.0.1:0", "--out", str(tmp_path / "b"))
        assert said("serve", "quickstart", *options).startswith(f"{change.partition('=')[0]} = ")


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("", ""),
        ("fl.example", "fl.example"),
        ("fl.example:8443", "fl.example"),
        ("10.0.0.5", "10.0.0.5"),
        ("[fd00::1]", "fd00::1"),
        ("[fd00::1]:8443", "fd00::1"),
    ],
)
def test_the_host_that_devices_are_told_has_no_port_and_no_brackets(name: str, host: str) -> None:
    assert hosts.named(name) == host


@pytest.mark.parametrize(
    "options",
    [
        ("--set", "local.lr=0.1"),
        ("--listen", "0.0.0.0:8443"),
        ("--name", "host"),
        ("--seed", "0"),
        ("--out", "elsewhere"),
        ("--overwrite",),
        ("--cert", "a.pem"),
        ("--key", "a.pem"),
        ("--members", "runs/fleet"),
        ("--behind-proxy",),
    ],
    ids=lambda options: options[0],
)
def test_a_served_run_goes_on_as_it_is(options: tuple[str, ...], tmp_path: Path) -> None:
    words = said("serve", "--resume", str(tmp_path), *options)
    assert words.startswith("--resume goes on with the run as it is")
    assert options[0] in words


def test_one_process_serves_a_run(tmp_path: Path) -> None:
    """For as long as it serves: nobody serves the same run, replaces it, or simulates in its place."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "fedasmu", "serve", "quickstart", "--listen", "127.0.0.1:0", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("devices join with" in line for line in server.stdout)
            assert f"another process (pid {server.pid})" in said("serve", "--resume", str(out))
            again = ("serve", "quickstart", "--listen", "127.0.0.1:0", "--overwrite", "--out", str(out))
            assert f"another process (pid {server.pid})" in said(*again)
            assert f"fedasmu serve --resume {out}" in said("resume", str(out))
        finally:
            server.kill()


@pytest.mark.parametrize("command", ["serve", "rehearse"])
def test_a_place_taken_by_a_served_run_says_how_it_goes_on(command: str, tmp_path: Path) -> None:
    out = Federation(tmp_path).path
    assert f"go on with it (`fedasmu serve --resume {out}`)" in said(command, "quickstart", "--out", str(out))


def test_a_run_that_is_over_is_not_served_again(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 4})
    federation.run()
    result = CliRunner().invoke(app, ["serve", "--resume", str(federation.path)])
    assert f"{federation.path} is finished already" in result.output.replace("\n", "")


def test_join(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", inputs=np.zeros((3, 4), np.float32), targets=np.zeros(3, np.int64))
    (tmp_path / "c.npz").write_text("hello")
    url, state = "https://127.0.0.1:1", ("--state", str(tmp_path / "state"))
    data = ("--data", str(tmp_path / "a.npz"))
    assert "https://host:port" in said("join", "host:1", *data, "--invite", INVITE, *state)
    assert "not an invite" in said("join", url, *data, "--invite", "fa1.x", *state)
    assert "--invite is missing" in said("join", url, *data, *state)
    assert "no npz file" in said("join", url, "--data", str(tmp_path / "c.npz"), "--invite", INVITE, *state)
    assert "cannot be read" in said("join", url, "--data", str(tmp_path / "none.npz"), "--invite", INVITE, *state)
    assert "give an .npz" in said("join", url, "--data", "folder", "--invite", INVITE, *state)
    assert "--engine fast" in said("join", url, *data, "--engine", "fast", *state)


def test_keys(tmp_path: Path) -> None:
    for command in (["invite"], ["list"], ["rotate"], ["revoke"]):
        more = ["kitchen-pi"] if command == ["revoke"] else []
        assert "not the folder of a served run" in said("keys", *command, str(tmp_path), *more)
    folder = Federation(tmp_path).path
    assert "no such device" in said("keys", "revoke", str(folder), "kitchen-pi")
    assert "--name Kitchen Pi" in said("keys", "invite", str(folder), "--name", "Kitchen Pi")
    assert "keys rotate" in said("keys", "rotate", str(folder), "--now")
    many = CliRunner().invoke(app, ["keys", "invite", str(folder), "--uses", "1" + 20 * "0"])
    assert (many.exit_code, "Invalid value for '--uses'" in many.output) == (2, True)
    invited = CliRunner().invoke(app, ["keys", "invite", str(folder), "--name", "kitchen-pi"])
    assert "fedasmu join https://127.0.0.1" in invited.output


def test_keys_are_listed_revoked_and_rotated(tmp_path: Path) -> None:
    federation = Federation(tmp_path, stop={"uploads": 4})
    federation.run()

    def keys(command: str, *more: str) -> str:
        done = CliRunner().invoke(app, ["keys", command, str(federation.path), *more])
        assert done.exit_code == 0, done.output
        return done.output.replace("\n", "")

    keys("invite", "--name", "kitchen-pi")
    name = federation.folder.register.all()[0].name
    listed = keys("list")
    assert name in listed, "a terminal of 80 columns breaks no name"
    assert "revoked" not in listed
    assert re.search(r"invite \w+: 1 left, good for \d+ h", listed)
    assert f"{name} is revoked" in keys("revoke", name)
    assert "revoked" in keys("list")
    before = federation.folder.pins()
    assert "announced to devices" in keys("rotate")
    announced = federation.folder.pins()
    assert "announced already" in keys("rotate")
    assert federation.folder.pins() == announced
    assert "restart the server" in keys("rotate", "--now")
    assert federation.folder.pins() != before


X, Y = np.zeros((4, 20), np.float32), np.zeros(4, np.int64)


@pytest.mark.parametrize(
    ("words", "arrays"),
    [
        ("targets must be whole numbers, one for each input; these are float64 of shape (4,)", {"targets": Y + 3.5}),
        ("targets must be whole numbers, one for each input; these are int64 of shape (4, 1)", {"targets": Y[:, None]}),
        ("targets are texts; must be whole numbers, the run's classes from 0 on", {"targets": np.array(["a"] * 4)}),
        ("4 inputs and 3 targets; need as many of each", {"targets": Y[:3]}),
        ("holds no examples", {"inputs": X[:0], "targets": Y[:0]}),
        ("must give (inputs, targets) as arrays: len() of a 0-d tensor", {"targets": Y[0]}),
        ("the inputs are not all finite numbers", {"inputs": X * np.nan}),
    ],
)
def test_data_that_are_none(words: str, arrays: dict[str, Any], tmp_path: Path) -> None:
    """From wherever they come, a message says from where."""
    both: dict[str, Any] = {"inputs": X, "targets": Y} | arrays
    path = tmp_path / "own.npz"
    np.savez(path, **both)
    for data, name in ((lambda: (both["inputs"], both["targets"]), "data"), (str(path), f"--data {path}")):
        with pytest.raises(UserError, match=f"^{re.escape(f'{name}: {words}')}"):
            Own(data)


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_file_of_data_without_its_arrays_or_cut_off(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"own.{suffix}"
    write: Any = safetensors.numpy.save_file if suffix == "safetensors" else lambda arrays, at: np.savez(at, **arrays)
    write({"inputs": X, "labels": Y}, path)
    with pytest.raises(UserError, match=f"^--data {path}: must hold arrays named inputs and targets; it has .*labels"):
        Own(str(path))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(UserError, match=f"^--data {path}: (damaged, or no safetensors|no npz) file"):
        Own(str(path))


def test_a_file_of_python_objects_is_said_to_be_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", inputs=X.astype(object), targets=Y)
    with pytest.raises(UserError, match=r"own\.npz: inputs holds Python objects; save numbers, or texts"):
        Own(str(tmp_path / "own.npz"))


def test_a_function_of_data_that_fails_is_named() -> None:
    with pytest.raises(UserError, match="must give"):
        Own(lambda: 5)  # type: ignore[arg-type, return-value]
    with pytest.raises(UserError, match="no_such_module"):
        source("no_such_module:examples")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Any:
    running = Federation(tmp_path_factory.mktemp("run"), blobs(devices=12), stop={"uploads": 1000})
    running.start()
    yield running
    running.stop()


@pytest.mark.parametrize(
    ("number", "words", "options"),
    [
        (0, r"shape \(3,\), but this run's have \(20,\)", {"data": lambda: (torch.zeros(4, 3), torch.zeros(4).long())}),
        (
            1,
            r"^data: targets are 0 to 7; .* classes 0\.\.1",
            {"data": lambda: (torch.zeros(4, 20), torch.arange(4) % 2 * 7)},
        ),
        (2, "other parameters here", {"model": lambda: torch.nn.Linear(20, 2)}),
        (3, "cannot be built here", {"model": None}),
        (4, "another certificate", {"invite": INVITE}),
    ],
)
def test_a_device_that_does_not_fit_is_told_why(
    federation: Federation, number: int, words: str, options: dict[str, Any]
) -> None:
    device = federation.device(number, **options)
    with pytest.raises(UserError, match=words):
        device.run()


def test_a_file_that_does_not_fit_is_named(federation: Federation, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", inputs=X, targets=Y + 14)
    with pytest.raises(UserError, match=r"^--data \S+own\.npz: targets are 14 to 14; must be classes 0\.\.1, as in"):
        federation.device(10, data=str(tmp_path / "own.npz")).run()


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("was used already; ask for a new one", {"uses": 0}),
        ("has expired; ask for a new one", {"hours": -1.0}),
        ("there is a device named 'taken' already", {"name": "taken"}),
    ],
)
def test_an_invite_that_is_not_good_is_said_to_be_none(
    federation: Federation, words: str, options: dict[str, Any]
) -> None:
    first = federation.folder.invite(name="taken") if "name" in options else None
    if first is not None:
        federation.device(7, invite=str(first)).join()
    with pytest.raises(UserError, match=words):
        federation.device(8, invite=str(federation.folder.invite(**options))).run()


def test_an_invite_of_another_run_is_said_to_be_one(federation: Federation) -> None:
    """The server is the right one, but its run began anew."""
    stranger = str(Invite.new(federation.folder.pin()))
    with pytest.raises(UserError, match="this invite is not of this run; ask for a new one"):
        federation.device(8, invite=stranger).run()


def test_a_full_disk_on_the_device_is_a_sentence(federation: Federation, tmp_path: Path) -> None:
    """Its folder for what is about to be sent cannot be made: as on a disk without room, the system refuses."""
    device = federation.device(9, state=tmp_path / "state")
    device.join()
    (tmp_path / "state" / "runs").mkdir(exist_ok=True)
    (tmp_path / "state" / "runs" / device.client.run).write_text("in the way")
    with pytest.raises(Refused, match=r"--state .*: cannot be written: .*it goes on with the same task"):
        device.run()


def test_what_is_no_model_is_not_believed(federation: Federation, tmp_path: Path) -> None:
    device = federation.device(6, state=tmp_path / "state")
    device.join()
    for body in (b"", b"FAS1", b"".join(wire.model_frame(Model(0, torch.zeros(3))))):
        with pytest.raises(UserError, match="what the server sends is no model for this device"):
            device.membership.read(wire.read_model, Reply(200, body))
    device.close()


def test_one_process_is_one_device(federation: Federation) -> None:
    device = federation.device(5)
    with pytest.raises(UserError, match="another process is this device already"):
        federation.device(5)
    device.close()


TERMS = {
    "model": "mlp",
    "algorithm": {"name": "fedavg"},
    "batch": 8,
    "epochs": 1,
    "shape": [20],
    "classes": 2,
    "layout": "",
}


def test_a_model_that_is_not_built_in_is_not_taken_from_the_wire() -> None:
    terms = Terms.read(TERMS | {"model": "os.path:join"}, "https://x")
    with pytest.raises(UserError, match="takes no code from a server"):
        Equipment(terms, (torch.zeros(4, 20), torch.zeros(4).long()), 0, "https://x", None, "auto")


@pytest.mark.parametrize(("largest", "dtype"), [(255, torch.float32), (255, torch.int64), (-255, torch.float32)])
def test_images_of_0_to_255_that_are_no_bytes_are_refused(largest: float, dtype: torch.dtype) -> None:
    terms = Terms.read(TERMS | {"model": "lenet5", "shape": [1, 28, 28], "scale": [0.01], "shift": [-0.5]}, "https://x")
    inputs = torch.zeros(4, 1, 28, 28, dtype=dtype)
    inputs[2] = largest
    with pytest.raises(
        UserError, match=r"data: the inputs are .*255.*, but this run's images, once scaled, -0.5 to 2.05"
    ):
        Equipment(terms, (inputs, torch.zeros(4).long()), 0, "https://x", None, "auto")


@pytest.mark.parametrize("inputs", [torch.full((4, 1, 28, 28), 255, dtype=torch.uint8), 3 * torch.ones(4, 1, 28, 28)])
def test_bytes_and_images_that_are_scaled_are_taken(inputs: torch.Tensor) -> None:
    terms = Terms.read(TERMS | {"model": "lenet5", "shape": [1, 28, 28], "scale": [0.01], "shift": [-0.5]}, "https://x")
    with pytest.raises(UserError, match="the model 'lenet5' has other parameters here"):  # which is looked at next
        Equipment(terms, (inputs, torch.zeros(4).long()), 0, "https://x", None, "auto")


@pytest.mark.parametrize(
    ("words", "change"),
    [
        ("no code", {"algorithm": {"name": "os:system"}}),
        ("not one that this version knows", {"epochs": 10**9}),
        ("not one that this version knows", {"surprise": 1}),
        ("not one that this version knows", {"shape": []}),
        ("does not have the method", {"algorithm": {"name": "fedfuture"}}),
        ("does not have the method", {"algorithm": {"name": "fedavg", "surprise": 1}}),
    ],
)
def test_a_device_takes_no_terms_that_it_does_not_know(words: str, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=words):
        Terms.read(TERMS | change, "https://x").method("https://x")


def test_a_device_stops_when_it_is_told_to(federation: Federation) -> None:
    device = federation.device(11)
    thread = threading.Thread(target=device.run)
    thread.start()
    device.stop()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(device, Device)
    assert network() is not None
