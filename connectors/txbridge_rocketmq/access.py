"""Access keys with their groups and topics, RocketMQ's signatures, and the files of keys and certificate."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from txbridge.config.sources import read_toml
from txbridge.errors import UsageError
from txbridge.kafka.errors import expires_at
from txbridge.log import get_logger
from txbridge_rocketmq.codes import RequestError, ResponseCode, UnauthenticatedError
from txbridge_rocketmq.command import RemotingCommand
from txbridge_rocketmq.requests import foreign_part

#: Days before the end of a certificate in which the door warns. One for 90 days is renewed 30 days before it, so that
#: something has failed by then.
WARNED_DAYS = 14

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
#: Fields that no client signs: the signature itself, and a mark that newer clients add after signing.
_UNSIGNED = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})
#: The authorization of gRPC clients. A region and a service may follow the name; they are not signed.
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/]*)(?:/[^,]*)?, *SignedHeaders=x-mq-date-time, *Signature=([0-9A-Fa-f]+)",
    re.ASCII,
)
#: How far the time of a gRPC request may be behind the door's clock, and ahead of it. The clients of Java, Go, Python
#: and C# write the local time of their zone and call it UTC: from 12 hours behind it to 14 ahead. Clocks have an hour.
_BEHIND, _AHEAD = timedelta(hours=13), timedelta(hours=15)
#: Minimum length of a secret key in RocketMQ.
_SHORTEST_SECRET = 6
#: Maximum of lines about refused requests in a minute (s), and of characters of a name in them.
_MOST_LOGGED, _MINUTE_S, LONGEST_LOGGED = 100, 60.0, 80

_log = get_logger("txbridge.rocketmq")


class RareLines:
    """Lines about what clients do wrong: one a minute for a host and a name, which may be any, and so many in all."""

    def __init__(self) -> None:
        self._logged: set[tuple[str, str]] = set()
        self._minute = -_MINUTE_S

    def may_log(self, peer: str, name: str) -> bool:
        """Whether there may be a line now."""
        now, line = time.monotonic(), (peer.rpartition(":")[0], name)
        if now - self._minute >= _MINUTE_S:
            self._minute = now
            self._logged.clear()
        if line in self._logged or len(self._logged) >= _MOST_LOGGED:
            return False
        self._logged.add(line)
        return True


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
        self.expires_at = expires_at(text)
        self.context = context


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key with which a client may send requests."""

    name: str
    secret: bytes = field(repr=False)
    #: Producer groups that it may speak for, and topics that it may send to; None means all.
    groups: frozenset[str] | None = None
    topics: frozenset[str] | None = None
    #: Whether it may create topics.
    is_admin: bool = False

    @property
    def of_grpc(self) -> AccessKey:
        """The key as it counts with gRPC, where a topic is the group of its producers as well."""
        limits = [one for one in (self.groups, self.topics) if one is not None]
        return replace(self, groups=frozenset.intersection(*limits) if limits else None)


#: Compared when no key has the name, so that an existing name takes no longer than another one.
_NOBODY = AccessKey("", b"\0" * 32)


class AccessKeys(WatchedFiles):
    """Checks every request, if there is a file of keys, and logs those that are refused."""

    def __init__(self, *files: Path) -> None:
        self._keys: Mapping[str, AccessKey] | None = None
        self._lines = RareLines()
        super().__init__(*files)

    def read_files(self) -> None:
        for file in self.files:
            self._keys = _keys_in(file)

    @property
    def any_key(self) -> AccessKey | None:
        """Any one of the keys; None when no keys are demanded."""
        return None if self._keys is None else next(iter(self._keys.values()))

    def has_key(self, key: AccessKey | None) -> bool:
        """Whether the key of an earlier request is still in the file, with the same rights."""
        found = None if self._keys is None or key is None else self._keys.get(key.name)
        return self._keys is None or (found is not None and key in {found, found.of_grpc})

    def check_request(self, command: RemotingCommand, peer: str) -> AccessKey | None:
        """Return the key that has signed the request; None when no keys are demanded. Raises RequestError."""
        fields = command.fields
        name, signed = fields.get(ACCESS_KEY, ""), fields.get(SIGNATURE, "")
        key = self._key_of(name, signed, peer, lambda secret: signature(secret, fields, command.body))
        if key is not None and (what := foreign_part(command)):
            text = (
                f"the request has {what}, which no client of RocketMQ up to 5.5 sends. The txbridge door takes it from "
                "nobody with an AccessKey, because a Signature does not cover the names of fields"
            )
            # A code after which no client tries again.
            raise self._logged_refusal(key.name, peer, RequestError(ResponseCode.INVALID_PARAMETER, text))
        return key

    def check_rpc(self, authorization: str, date_time: str, peer: str) -> AccessKey | None:
        """Check a gRPC request by its headers `authorization` and `x-mq-date-time`. Only the latter is signed."""
        found = _AUTHORIZATION.fullmatch(authorization)
        # Some clients write lower-case digits.
        name, signed = (found[1], found[2].upper()) if found else ("", "")
        key = self._key_of(
            name, signed, peer, lambda secret: hmac.digest(secret, date_time.encode(), hashlib.sha1).hex().upper()
        )
        if key is None:
            return None
        if not _is_recent(date_time):
            now = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
            text = f"x-mq-date-time is {date_time[:40]!r}, and the door's clock says {now}: set the client's clock"
            raise self._logged_refusal(key.name, peer, UnauthenticatedError(ResponseCode.NO_PERMISSION, text))
        return key.of_grpc

    def _key_of(self, name: str, signed: str, peer: str, expected: Callable[[bytes], str]) -> AccessKey | None:
        if self._keys is None:
            return None
        key = self._keys.get(name, _NOBODY)
        is_right = hmac.compare_digest(expected(key.secret).encode(), signed.encode())
        if key is _NOBODY or not is_right:
            what = "the AccessKey is unknown or the Signature is wrong" if name else "the request has no AccessKey"
            text = f"{what}: give the client a key of the door (AclClientRPCHook; with gRPC its ClientConfiguration)"
            raise self._logged_refusal(name, peer, UnauthenticatedError(ResponseCode.NO_PERMISSION, text))
        return key

    def _logged_refusal(self, name: str, peer: str, error: RequestError) -> RequestError:
        name = name[:LONGEST_LOGGED]
        if self._lines.may_log(peer, name):
            _log.warning("access_refused", peer=peer, access_key=name, reason=error.remark)
        return error


def require_group(key: AccessKey | None, group: str) -> None:
    """Raise RequestError if this key may not speak for this producer group."""
    if key is not None and key.groups is not None and group not in key.groups:
        text = f"the AccessKey {key.name} may not speak for the group {group}; with gRPC that is the topic"
        raise RequestError(ResponseCode.NO_PERMISSION, text)


def require_topic(key: AccessKey | None, topic: str) -> None:
    """Raise RequestError if this key may not send to this topic."""
    if key is not None and key.topics is not None and topic not in key.topics:
        raise RequestError(ResponseCode.NO_PERMISSION, f"the AccessKey {key.name} may not send to the topic {topic}")


def signature(secret: bytes, fields: Mapping[str, str], body: bytes) -> str:
    """HMAC-SHA1 of the values of all fields in the order of their names, and of the body."""
    signed = "".join(value for name, value in sorted(fields.items()) if name not in _UNSIGNED)
    # The clients use SHA-1. In an HMAC it is not known to be weak.
    return base64.b64encode(hmac.digest(secret, signed.encode() + body, hashlib.sha1)).decode()


def _is_recent(date_time: str) -> bool:
    try:
        given = datetime.fromisoformat(date_time)
    except ValueError:
        return False
    return -_BEHIND <= given.replace(tzinfo=given.tzinfo or UTC) - datetime.now(UTC) <= _AHEAD


def _keys_in(path: Path) -> dict[str, AccessKey]:
    """Read a TOML file with tables `[[key]]`: access_key, secret_key, and groups and topics unless all are allowed.

    A key with `admin = true` may create topics. Raises UsageError.
    """
    given = read_toml(path, "the file of access keys")
    keys: dict[str, AccessKey] = {}
    tables = given.get("key")
    if set(given) != {"key"} or not isinstance(tables, list) or not tables:
        raise UsageError(f"{path}: expected one or more [[key]] tables, and nothing else")
    for number, table in enumerate(tables, 1):
        key = _key_of(table, f"{path}: key {number}")
        if key.name in keys:
            raise UsageError(f"{path}: access_key {key.name!r} appears twice")
        keys[key.name] = key
    return keys


def _key_of(table: object, where: str) -> AccessKey:
    needed, limits = {"access_key", "secret_key"}, ("groups", "topics")
    if not isinstance(table, dict) or not needed <= set(table) <= {*needed, *limits, "admin"}:
        raise UsageError(
            f"{where} needs access_key and secret_key, and may have groups, topics and admin, but nothing else"
        )
    name, secret, is_admin = table["access_key"], table["secret_key"], table.get("admin", False)
    if not isinstance(name, str) or not name or not isinstance(secret, str) or len(secret) < _SHORTEST_SECRET:
        raise UsageError(
            f"{where}: access_key must be a string, and secret_key one of at least {_SHORTEST_SECRET} characters"
        )
    for one in limits:
        if not isinstance(table.get(one, []), list) or not all(isinstance(each, str) for each in table.get(one, [])):
            raise UsageError(f"{where}: {one} must be a list of strings")
    if not isinstance(is_admin, bool):
        raise UsageError(f"{where}: admin must be true or false")
    groups, topics = (frozenset(table[one]) if one in table else None for one in limits)
    return AccessKey(name, secret.encode(), groups, topics, is_admin)
