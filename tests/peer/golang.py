"""RocketMQ's Go client of the remoting protocol, locked like its jars: Go checks each module against `go/go.sum`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.peer.cache import cached, named_by, run

_GO = Path(__file__).with_name("go")
# The build takes a minute of processor time, most of it for Go's own library, after the modules are fetched.
_BUILD_TIMEOUT_S = 900.0
#: Go must not fetch another compiler, nor change the locked versions.
_SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}


def go_client() -> Path:
    """Path of the producer, built if it is not in the cache. EnvironmentProblemError if that is not possible."""
    return _program("rocketmq-client-golang", ".")


def go_admin() -> Path:
    """Path of the admin client. As `go_client`."""
    return _program("rocketmq-admin-golang", "admin")


def _program(what: str, package: str) -> Path:
    name = named_by(what, *(_GO / file for file in (f"{package}/main.go", "go.mod", "go.sum")))

    def build(folder: Path) -> None:
        run(
            ["go", "build", "-o", f"{folder}/client", f"./{package}"],
            _GO,
            _BUILD_TIMEOUT_S,
            {**os.environ, **_SETTINGS},
        )

    return cached(name, build) / "client"
