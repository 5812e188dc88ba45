"""Who speaks: Ed25519 keys of devices, the text that every request signs, and invites.

An invite is `fa1.<id>.<seed>.<pin>`: a key made for it, and the SHA-256 of the server's certificate. The server keeps
only the key's public half, and the device only signs with it, so that the secret never travels.
"""

from __future__ import annotations

import base64
import secrets
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedasmu.errors import UserError
from fedasmu.system.disk import write_private

PREFIX = "fa1"


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str, length: int) -> bytes:
    """Exactly so many bytes, in the one way to write them."""
    data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    if len(data) != length or encoded(data) != text:
        raise ValueError(f"not {length} bytes")
    return data


@dataclass(frozen=True, slots=True)
class Invite:
    id: str
    seed: bytes
    pin: bytes  # SHA-256 of the server's certificate

    @classmethod
    def new(cls, pin: bytes) -> Invite:
        return cls(secrets.token_hex(6), secrets.token_bytes(32), pin)

    @classmethod
    def read(cls, text: str) -> Invite:
        try:
            prefix, name, seed, pin = text.strip().split(".")
            if prefix != PREFIX or not (name.isascii() and name.isalnum() and len(name) <= 32):
                raise ValueError
            return cls(name, decoded(seed, 32), decoded(pin, 32))
        except ValueError:
            raise UserError(
                f"--invite: not an invite; it begins with {PREFIX}. and has four parts, as `fedasmu keys invite` "
                "prints it: was it copied whole?"
            ) from None

    def __str__(self) -> str:
        return ".".join([PREFIX, self.id, encoded(self.seed), encoded(self.pin)])

    @property
    def key(self) -> Key:
        return Key(Ed25519PrivateKey.from_private_bytes(self.seed))


@dataclass(frozen=True, slots=True)
class Key:
    """A private key. Its public half is 32 bytes."""

    private: Ed25519PrivateKey

    @classmethod
    def at(cls, path: Path) -> Key:
        """The key in this file, made on first use and readable by its owner only."""
        if not path.exists():
            write_private(path, Ed25519PrivateKey.generate().private_bytes_raw())
        try:
            return cls(Ed25519PrivateKey.from_private_bytes(path.read_bytes()))
        except ValueError:
            raise UserError(f"{path}: not a key; move the folder away and join with a new invite") from None

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes_raw()

    def sign(self, text: bytes) -> bytes:
        return self.private.sign(text)


def verified(public: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def content_digest(body: bytes | bytearray) -> str:
    """As RFC 9530 writes it."""
    return f"sha-256=:{base64.b64encode(sha256(body).digest()).decode()}:"


def request_text(run: str, method: str, target: str, device: int, visit: str, sequence: int, digest: str) -> bytes:
    """What a device signs with every request: nothing in it can be taken to another request."""
    return "\n".join(["fedasmu-1", run, f"{method} {target}", str(device), visit, str(sequence), digest]).encode()


def hello_text(run: str, challenge: str, public: bytes) -> bytes:
    """What opens a visit."""
    return "\n".join(["fedasmu-1 hello", run, challenge, encoded(public)]).encode()


def rekey_text(run: str, challenge: str, old: bytes, new: bytes) -> bytes:
    """What a device's old key and its new one both sign."""
    return "\n".join(["fedasmu-1 rekey", run, challenge, encoded(old), encoded(new)]).encode()


def enrol_text(run: str, challenge: str, public: bytes, name: str, examples: int) -> bytes:
    """What an invite's key and the device's new key both sign."""
    return "\n".join(["fedasmu-1 enrol", run, challenge, encoded(public), name, str(examples)]).encode()
