"""Files that a door reads again when they have changed, and its certificate as one case of them."""

from __future__ import annotations

import contextlib
import math
import re
import ssl
import time
from abc import ABC, abstractmethod
from datetime import datetime
from pathlib import Path

from txbridge.errors import UsageError
from txbridge.log import get_logger

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
#: The two times of a certificate's validity in DER, each with its type and length: the years have two digits or four.
_VALIDITY = re.compile(rb"(?:\x17\x0d|\x18\x0f)\d{10,14}Z(?:\x17\x0d|\x18\x0f)(\d{10,14}Z)")

#: Days before the end of a certificate in which the door warns. One for 90 days is renewed 30 days before it, so that
#: something has failed by then.
WARNED_DAYS = 14

_log = get_logger("txbridge.rocketmq")


class WatchedFiles(ABC):
    """What some files say: the newest of them that could be read."""

    def __init__(self, *files: Path) -> None:
        """Raises UsageError if they cannot be read."""
        self.files = files
        self._read = self._seen = self._state()
        self.read_files()

    @abstractmethod
    def read_files(self) -> None:
        """Read them. Raises UsageError, and changes nothing then."""

    def look_again(self) -> bool:
        """Read them if they have changed, and not since the last look, so that nobody is writing; whether they were."""
        before, self._seen = self._seen, self._state()
        if before != self._seen or self._seen == self._read:
            return False
        self._read, files = self._seen, [str(one) for one in self.files]
        try:
            self.read_files()
        except UsageError as error:
            _log.error("files_not_read", files=files, error=str(error), next="the door goes on with the old ones")
            return False
        _log.info("files_read", files=files)
        return True

    def _state(self) -> list[tuple[int, int]]:
        """Another one if somebody writes a file, or puts another one in its place."""
        with contextlib.suppress(OSError):
            return [(found.st_mtime_ns, found.st_ino) for one in self.files if (found := one.stat())]
        return []


class Certificate(WatchedFiles):
    """The files of a certificate, alone or before those of its authorities, and of its key. They may be one file."""

    #: For the connections to come.
    context: ssl.SSLContext
    #: Until then (s since 1970) all of the certificates are valid.
    expires_at: float

    @property
    def days_left(self) -> float:
        """Days until its end; negative after it."""
        return (self.expires_at - time.time()) / 86_400

    def read_files(self) -> None:
        certificate, key = self.files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Clients of gRPC demand it, those of the remoting protocol name none.
        context.set_alpn_protocols(["h2"])
        try:
            # Without a password OpenSSL would ask for it on the terminal.
            context.load_cert_chain(certificate, key, "")
            text = certificate.read_text(errors="replace")
        except (OSError, ssl.SSLError) as error:
            raise UsageError(f"the certificate {certificate} with the key {key} cannot be used: {error}") from None
        self.expires_at = min(map(_expiry_of, _PEM.findall(text)), default=math.inf)
        self.context = context


def _expiry_of(pem: str) -> float:
    found = _VALIDITY.search(ssl.PEM_cert_to_DER_cert(pem))
    if found is None:
        return math.inf
    text = found[1].decode()
    # RFC 5280: 50 is 1950, and 49 is 2049.
    century = "" if len(text) == 15 else "20" if text < "50" else "19"
    return datetime.strptime(f"{century}{text}", "%Y%m%d%H%M%S%z").timestamp()
