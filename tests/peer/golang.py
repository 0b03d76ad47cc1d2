"""RocketMQ's Go clients, locked like its jars: Go checks each module against `go.sum`."""

from __future__ import annotations

import os
from pathlib import Path

from tests.peer.cache import cached, named_by, run

#: Folders of the program of the remoting protocol, and of that of gRPC.
REMOTING, GRPC = (Path(__file__).with_name(name) for name in ("go", "go5"))
# A build takes a minute of processor time, most of it for Go's own library, after the modules are fetched.
_BUILD_TIMEOUT_S = 900.0
#: Go must not fetch another compiler, nor change the locked versions.
_SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}


def go_client(module: Path, package: str = ".") -> Path:
    """Path of a program, built if it is not in the cache. EnvironmentProblemError if that is not possible."""
    files = (module / package / "main.go", module / "go.mod", module / "go.sum")
    name = named_by("rocketmq-client-golang", *files)

    def build(folder: Path) -> None:
        command = ["go", "build", "-o", f"{folder}/client", f"./{package}"]
        run(command, module, _BUILD_TIMEOUT_S, {**os.environ, **_SETTINGS})

    return cached(name, build) / "client"
