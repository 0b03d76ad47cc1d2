"""Authorities that sign certificates of clients and brokers on 127.0.0.1, also expired ones."""

from __future__ import annotations

import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

#: Of the brokers' key stores.
PASSWORD = "changeit"
_VALID_S = 86_400.0


class Authority:
    """A certificate of it is valid for so many seconds from now on; a negative number makes it an expired one."""

    def __init__(self, name: str) -> None:
        self._key, self._name = ec.generate_private_key(ec.SECP256R1()), _named(name)
        self.certificate = self._sign(self._name, self._key, _VALID_S).public_bytes(Encoding.PEM)

    def own_key(self, password: str = "") -> str:
        hidden = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden).decode()

    def client(self, name: str, folder: Path, seconds: float = _VALID_S) -> dict[str, str]:
        """Write the files of a client, and return librdkafka's settings for them. They replace those of this name."""
        key, certificate = ec.generate_private_key(ec.SECP256R1()), folder / f"{name}.pem"
        signed = self._sign(_named(name), key, seconds).public_bytes(Encoding.PEM)
        certificate.write_bytes(signed + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return {"ssl.certificate.location": str(certificate), "ssl.key.location": str(certificate)}

    def key_store(self, file: Path, seconds: float = _VALID_S) -> None:
        """Write the key store of a broker."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed, hidden = self._sign(_named("broker"), key, seconds), BestAvailableEncryption(PASSWORD.encode())
        file.write_bytes(pkcs12.serialize_key_and_certificates(b"broker", key, signed, None, hidden))

    def _sign(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, seconds: float) -> x509.Certificate:
        now, host = datetime.now(UTC), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        return (
            x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=30))
            .not_valid_after(now + timedelta(seconds=seconds))
            .add_extension(x509.BasicConstraints(ca=name == self._name, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([host]), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
