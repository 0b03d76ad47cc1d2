"""Access keys with their producer groups, and RocketMQ's signatures, as its ACL makes them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txbridge.config.sources import read_toml
from txbridge.errors import UsageError
from txbridge.log import get_logger
from txbridge_rocketmq.codes import RequestError, ResponseCode, UnauthenticatedError
from txbridge_rocketmq.watched_files import WatchedFiles

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
#: Fields that no client signs: the signature itself, and a mark that newer clients add after signing.
_UNSIGNED = frozenset({SIGNATURE, "_UNIQUE_KEY_QUERY"})
#: The authorization of gRPC clients. A region and a service may follow the name; they are not signed.
_AUTHORIZATION = re.compile(
    r"MQv2-HMAC-SHA1 +Credential=([^,/]*)(?:/[^,]*)?, *SignedHeaders=x-mq-date-time, *Signature=([0-9A-Fa-f]+)",
    re.ASCII,
)
#: Minimum length of a secret key in RocketMQ.
_SHORTEST_SECRET = 6
#: Maximum of lines about refused requests in a minute (s), and of characters of a key's name in them.
_MOST_LOGGED, _MINUTE_S, _LONGEST_LOGGED = 100, 60.0, 80

_log = get_logger("txbridge.rocketmq")


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key with which a client may send requests."""

    name: str
    secret: bytes = field(repr=False)
    #: Producer groups that it may speak for; None means every group.
    groups: frozenset[str] | None = None
    #: Whether it may create topics.
    is_admin: bool = False


#: Compared when no key has the name, so that an existing name takes no longer than another one.
_NOBODY = AccessKey("", b"\0" * 32)


class AccessKeys(WatchedFiles):
    """Checks every request, if there is a file of keys, and logs those that are refused."""

    def __init__(self, *files: Path) -> None:
        self._keys: Mapping[str, AccessKey] | None = None
        #: Hosts and keys of the lines of this minute, and its beginning.
        self._logged: set[tuple[str, str]] = set()
        self._minute = -_MINUTE_S
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
        return self._keys is None or (key is not None and self._keys.get(key.name) == key)

    def check_request(self, fields: Mapping[str, str], body: bytes, peer: str) -> AccessKey | None:
        """Return the key that has signed the request; None when no keys are demanded. Raises RequestError."""
        return self._key_of(
            fields.get(ACCESS_KEY, ""),
            fields.get(SIGNATURE, ""),
            lambda secret: signature(secret, fields, body),
            "AclClientRPCHook with SessionCredentials",
            peer,
        )

    def check_rpc(self, authorization: str, date_time: str, peer: str) -> AccessKey | None:
        """Check a gRPC request by its headers `authorization` and `x-mq-date-time`. Only the latter is signed."""
        found = _AUTHORIZATION.fullmatch(authorization)
        return self._key_of(
            found[1] if found else "",
            # Some clients write lower-case digits.
            found[2].upper() if found else "",
            lambda secret: hmac.digest(secret, date_time.encode(), hashlib.sha1).hex().upper(),
            "credentials in the ClientConfiguration",
            peer,
        )

    def _key_of(
        self, name: str, signed: str, expected: Callable[[bytes], str], where: str, peer: str
    ) -> AccessKey | None:
        if self._keys is None:
            return None
        key = self._keys.get(name, _NOBODY)
        is_right = hmac.compare_digest(expected(key.secret).encode(), signed.encode())
        if key is _NOBODY or not is_right:
            self._log_refusal(name[:_LONGEST_LOGGED], peer)
            what = "the AccessKey is unknown or the Signature is wrong" if name else "the request has no AccessKey"
            raise UnauthenticatedError(
                ResponseCode.NO_PERMISSION, f"{what}: give the client the keys that the door was given ({where})"
            )
        return key

    def _log_refusal(self, name: str, peer: str) -> None:
        """Log one line a minute for a host and a key, and a limited number in all: a client may name any key."""
        now, host = time.monotonic(), peer.rpartition(":")[0]
        if now - self._minute >= _MINUTE_S:
            self._minute = now
            self._logged.clear()
        if (host, name) not in self._logged and len(self._logged) < _MOST_LOGGED:
            self._logged.add((host, name))
            _log.warning("access_refused", peer=peer, access_key=name)


def require_group(key: AccessKey | None, group: str) -> None:
    """Raise RequestError if this key may not speak for this producer group."""
    if key is not None and key.groups is not None and group not in key.groups:
        raise RequestError(ResponseCode.NO_PERMISSION, f"the AccessKey {key.name} may not speak for the group {group}")


def signature(secret: bytes, fields: Mapping[str, str], body: bytes) -> str:
    """HMAC-SHA1 of the values of all fields in the order of their names, and of the body."""
    signed = "".join(value for name, value in sorted(fields.items()) if name not in _UNSIGNED)
    # The clients use SHA-1. In an HMAC it is not known to be weak.
    return base64.b64encode(hmac.digest(secret, signed.encode() + body, hashlib.sha1)).decode()


def _keys_in(path: Path) -> dict[str, AccessKey]:
    """Read a TOML file with tables `[[key]]`: access_key, secret_key, and groups unless the key may speak for all.

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
    if not isinstance(table, dict) or not {"access_key", "secret_key"} <= set(table) <= {
        "access_key",
        "secret_key",
        "groups",
        "admin",
    }:
        raise UsageError(f"{where} needs access_key and secret_key, and may have groups and admin, but nothing else")
    name, secret, groups = table["access_key"], table["secret_key"], table.get("groups")
    is_admin = table.get("admin", False)
    if not isinstance(name, str) or not name or not isinstance(secret, str) or len(secret) < _SHORTEST_SECRET:
        raise UsageError(
            f"{where}: access_key must be a string, and secret_key one of at least {_SHORTEST_SECRET} characters"
        )
    if groups is not None and not (isinstance(groups, list) and all(isinstance(one, str) for one in groups)):
        raise UsageError(f"{where}: groups must be a list of strings")
    if not isinstance(is_admin, bool):
        raise UsageError(f"{where}: admin must be true or false")
    return AccessKey(name, secret.encode(), None if groups is None else frozenset(groups), is_admin)
