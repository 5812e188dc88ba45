"""Servers that devices know by a public authority: with its certificate, or behind a proxy that has one. Real TLS."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedasmu import Result
from fedasmu.network import certificate
from fedasmu.network.connection import PUBLIC, Ended
from fedasmu.network.folder import Shown
from fedasmu.network.listener import bound
from helpers.federation import Federation
from helpers.said import said
from helpers.served import eventually

DAY = datetime.timedelta(days=1)


class Authority:
    """Signs certificates for 127.0.0.1, as a public one would for a name."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name.from_rfc4514_string("CN=test authority")
        self.file = self._signed("authority", self.name, self.key, 10 * DAY, authority=True)

    def certificate(self, name: str, days: int = 10) -> list[str]:
        key = ec.generate_private_key(ec.SECP256R1())
        path = self._signed(name, x509.Name.from_rfc4514_string("CN=server"), key, days * DAY)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        path.with_suffix(".key").write_bytes(private)
        return [str(path), str(path.with_suffix(".key"))]

    def _signed(
        self, name: str, subject: x509.Name, key: Any, until: datetime.timedelta, authority: bool = False
    ) -> Path:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self.name).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - 20 * DAY).not_valid_after(now + until)
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.BasicConstraints(authority, None), critical=True)
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        path = self.folder / f"{name}.pem"
        path.write_bytes(builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """One that this process trusts."""
    made = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(made.file))
    return made


class Known(Federation):
    def __init__(self, folder: Path, shown: Shown, **changes: Any) -> None:
        self.shown = shown
        super().__init__(folder, **changes)


def test_a_certificate_of_an_authority_that_the_device_trusts(tmp_path: Path, authority: Authority) -> None:
    federation = Known(tmp_path, Shown(authority.certificate("good")), stop={"uploads": 6})
    assert federation.folder.pin() == PUBLIC
    federation.run()
    assert Result(federation.path).summary["uploads"] >= 6


@pytest.mark.parametrize("trusted", [True, False])
def test_a_certificate_that_it_does_not_trust(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch, trusted: bool
) -> None:
    """Run out, which is also what a wrong clock looks like; or of an authority that nobody knows here."""
    if not trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(Authority(tmp_path).file))
    federation = Known(tmp_path, Shown(authority.certificate("old", days=-5 if trusted else 5)))
    federation.start()
    with pytest.raises(
        Ended, match=r"does not trust \(.*\): is the address right, and this machine's clock\?"
    ) as caught:
        federation.device(0).run()
    assert ("expired" in str(caught.value)) == trusted
    federation.stop()


@contextmanager
def proxy(target: int, files: list[str]) -> Iterator[int]:
    """Ends TLS, and passes plain bytes on to the server."""
    context = certificate.server_context(*map(Path, files))
    listening = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, goal: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                goal.sendall(data)
        for one in (source, goal):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                plain, _ = listening.accept()
                with suppress(ssl.SSLError):
                    peer = context.wrap_socket(plain, server_side=True)
                    server = socket.create_connection(("127.0.0.1", target))
                    for pair in ((peer, server), (server, peer)):
                        threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listening.getsockname()[1]
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def test_behind_a_proxy_that_ends_tls(tmp_path: Path, authority: Authority) -> None:
    with closing(bound("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with proxy(port, authority.certificate("proxy")) as front:
        federation = Known(tmp_path, Shown(name=f"127.0.0.1:{front}"), stop={"uploads": 6})
        federation.folder.port = port
        assert federation.folder.url == f"https://127.0.0.1:{front}"
        assert federation.folder.context is None
        federation.run()
    assert Result(federation.path).summary["uploads"] >= 6


def test_what_does_not_go_together_is_said(tmp_path: Path) -> None:
    assert "--cert and --key go together" in said("serve", "quickstart", "--cert", "a.pem")
    assert "say with --name" in said("serve", "quickstart", "--behind-proxy")
    both = ("--cert", "a.pem", "--key", "a.key", "--name", "fl.example")
    assert "the proxy has the certificate" in said("serve", "quickstart", "--behind-proxy", *both)
    proxied = ("serve", "quickstart", "--behind-proxy", "--name", "fl.example", "--listen")
    assert "on this machine only" in said(*proxied, "10.0.0.5:8080")
    assert "cannot be used for TLS" in said("serve", "quickstart", *both)
    proxied_run = Known(tmp_path, Shown(name="fl.example"))
    assert "renew it there" in said("keys", "rotate", str(proxied_run.path))


@pytest.mark.parametrize(
    ("linger", "word"), [(20.0, "of 2 devices to hear so, 20 s at most"), (float("inf"), "staying to tell so")]
)
def test_a_server_says_what_it_waits_for_when_the_run_is_over(
    linger: float, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedasmu.network.serving.SOON", 0.0)
    heard: list[str] = []
    federation = Federation(tmp_path, stop={"uploads": 4})
    federation.linger = linger
    federation.start()
    federation.serving.say = heard.append
    away, working = federation.device(0), federation.device(1)
    away.join()
    federation.work(working).join(120)
    assert eventually(lambda: heard)
    assert len(heard) == 1
    assert heard[0].startswith("the run is over; ")
    assert heard[0].endswith(f"{word}; Ctrl-C ends it")
    federation.stop()
    assert federation.ended


def test_a_server_that_stays_tells_whoever_comes_late(tmp_path: Path) -> None:
    """Also one that is started again when the run is over."""
    federation = Federation(tmp_path, stop={"uploads": 4})
    federation.linger = float("inf")
    federation.start()
    early = [federation.device(number) for number in range(2)]
    for device in early:
        device.join()
    threads = [federation.work(device) for device in early]
    for thread in threads:
        thread.join(120)
    said_late: list[str] = []
    federation.device(5, say=said_late.append).run()
    assert said_late == ["the run is over: it ended before this device had joined"]
    federation.stop()
    command = [sys.executable, "-m", "fedasmu", "serve", "--resume", str(federation.path), "--stay"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            assert any("devices that come are told so" in line for line in server.stdout)
            said_late.clear()
            federation.device(6, say=said_late.append).run()
            assert said_late[-1] == "the run is over"
            server.terminate()
            assert server.wait(60) == 0
        finally:
            server.kill()
