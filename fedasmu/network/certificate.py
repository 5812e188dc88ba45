"""The server's certificate: made by itself, for ten years, and known to devices by its SHA-256.

A pin needs no clock and no authority: a device checks it in the handshake, before it sends a byte.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from fedasmu.errors import UserError
from fedasmu.system.disk import write_private

CURRENT, NEXT = "current", "next"
YEARS = 10


def make(folder: Path, name: str, hosts: Iterable[str]) -> bytes:
    """Write `name`.key and `name`.pem, readable by their owner only; the pin."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedasmu")])
    began = datetime.datetime(2000, 1, 1)  # a device without a clock boots in the past
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(began)
    builder = builder.not_valid_after(datetime.datetime.now() + datetime.timedelta(days=366 * YEARS))
    builder = builder.add_extension(x509.SubjectAlternativeName(list(map(_name, hosts))), critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_private(folder / f"{name}.key", private)
    write_private(folder / f"{name}.pem", certificate.public_bytes(Encoding.PEM))
    return sha256(certificate.public_bytes(Encoding.DER)).digest()


def pin(path: Path) -> bytes:
    """SHA-256 of the certificate in a PEM file."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: the certificate cannot be read: {error}") from None
    return sha256(certificate.public_bytes(Encoding.DER)).digest()


def pins(folder: Path) -> list[bytes]:
    """Of the certificate in use, and of the one that will follow it."""
    return [pin(path) for name in (CURRENT, NEXT) if (path := folder / f"{name}.pem").exists()]


def switch(folder: Path) -> None:
    """Put the next certificate in the place of the current one."""
    if not (folder / f"{NEXT}.pem").exists():
        raise UserError("there is no next certificate: run `fedasmu keys rotate DIR` first, and give devices time")
    for ending in ("key", "pem"):  # the server reads them when it starts
        if (following := folder / f"{NEXT}.{ending}").exists():  # not the key, where a kill came between the two
            following.replace(folder / f"{CURRENT}.{ending}")


def server_context(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # a device keeps its connection; tickets would only cost
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UserError(f"{certificate}, {key}: cannot be used for TLS: {error}") from None
    return context


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
