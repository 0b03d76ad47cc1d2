"""The jars of Apache RocketMQ, locked like Kafka's and fetched the same way.

`jars.lock` is what Maven resolves for rocketmq-namesrv, rocketmq-broker and rocketmq-client together, without netty's
native libraries: netty does the same without them, more slowly. `client-*.lock` names exactly the jars that a producer
of another version loads, or an application with a Spring starter; `client-spring.lock` those that two starters share.
`client-codecs.lock` names the jars that a consumer loads in addition, and a producer when it compresses with LZ4 or
ZSTD. The format is that of `txbridge/embedded/jars.py`.
"""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from tests.peer.cache import cached, named_by
from txbridge.embedded.jars import Artifact, fetch_jars, parse_lock
from txbridge.errors import EnvironmentProblemError

ROCKETMQ_VERSION = "5.5.0"
_LOCK = Path(__file__).with_name("jars.lock")
JARS: tuple[Artifact, ...] = tuple(parse_lock(_LOCK.read_text()))
#: Left out for clients: with a server on the class path the client logs as that server does, and to its standard
#: output.
_SERVERS = ("rocketmq-namesrv", "rocketmq-broker")


def jar_folder() -> Path:
    """Path of the folder with all jars, fetched into the cache of txbridge if they are not there.

    Raises:
        EnvironmentProblemError: they cannot be had, or are not those of the lock.

    """
    return _folder(f"rocketmq-{ROCKETMQ_VERSION}", f"RocketMQ {ROCKETMQ_VERSION}", JARS)


def client_class_path(version: str) -> str:
    """Class path of a client alone, of a version that has a lock file here. Raises as `jar_folder`."""
    lock = _LOCK.with_name(f"client-{version}.lock")
    return locked_class_path(named_by(f"rocketmq-client-{version}", lock), f"RocketMQ's client {version}", lock)


def locked_class_path(name: str, what: str, lock: Path) -> str:
    """Class path of the jars of any lock file, which are `what`, in a folder of the cache. Raises as `jar_folder`."""
    jars = tuple(parse_lock(lock.read_text()))
    folder = _folder(name, what, jars)
    return os.pathsep.join(str(folder / one.file_name) for one in jars)


def _folder(name: str, what: str, jars: tuple[Artifact, ...]) -> Path:
    folder = cached(name, lambda fresh: fetch_jars(fresh, jars, what, Console(stderr=True)))
    for one in jars:
        path = folder / one.file_name
        if not path.is_file() or path.stat().st_size != one.size:
            raise EnvironmentProblemError(f"{path} is missing or damaged: delete the folder {folder} and try again")
    return folder


def class_path(folder: Path, *, servers: bool) -> str:
    """Class path of all jars, with or without the servers."""
    return os.pathsep.join(str(folder / one.file_name) for one in JARS if servers or one.name not in _SERVERS)
