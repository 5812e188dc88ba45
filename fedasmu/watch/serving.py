"""Where the page is served: on this machine alone, or for others with TLS and a token."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fedasmu.errors import UserError
from fedasmu.network import certificate
from fedasmu.network.deadline import Patience
from fedasmu.network.listener import Listener, bound
from fedasmu.watch.app import application

LOOPBACK = {"127.0.0.1", "localhost", "[::1]"}
CONNECTIONS = 64  # at once from one address


@dataclass
class Serving:
    folder: Path
    listening: socket.socket
    hosts: set[str]
    token: str | None = None
    tls: ssl.SSLContext | None = None

    @classmethod
    def local(cls, folder: Path, port: int) -> Serving:
        return cls(folder, bound("127.0.0.1", port, "--port N"), LOOPBACK)

    @classmethod
    def public(cls, folder: Path, listen: str, token: str) -> Serving:
        host, _, port = listen.rpartition(":")
        if not host or not port.isdecimal():
            raise UserError(f"--listen {listen}: write it as ADDRESS:PORT, for instance 0.0.0.0:9000")
        listening = bound(host.strip("[]"), int(port))
        hosts = LOOPBACK | {host, socket.gethostname()}
        with tempfile.TemporaryDirectory() as keys:  # a certificate of its own for as long as the page is there
            certificate.make(Path(keys), certificate.CURRENT, [name.strip("[]") for name in hosts])
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.load_cert_chain(*(str(Path(keys) / f"{certificate.CURRENT}.{kind}") for kind in ("pem", "key")))
        return cls(folder, listening, hosts, token, tls)

    @property
    def url(self) -> str:
        host, port = self.listening.getsockname()[:2]
        host = socket.gethostname() if host in ("0.0.0.0", "::") else host  # one of this machine's that others can open
        scheme, query = ("http", "") if self.tls is None else ("https", f"?token={self.token}")
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/{query}"

    async def forever(self) -> None:
        app = application(self.folder, self.hosts, self.token)
        Listener(app, self.listening, self.tls, Patience(), CONNECTIONS).start()
        await asyncio.Event().wait()
