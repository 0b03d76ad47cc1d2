"""RocketMQ's Go client of the remoting protocol, locked like its jars: Go checks each module against `go/go.sum`."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from txbridge.embedded.paths import cache_root
from txbridge.errors import EnvironmentProblemError

_GO = Path(__file__).with_name("go")
# The build takes a minute of processor time, most of it for Go's own library, after the modules are fetched.
_BUILD_TIMEOUT_S = 900.0
#: Go must not fetch another compiler, nor change the locked versions.
_SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}


def go_client() -> Path:
    """Path of the program, built into the cache of txbridge if it is not there.

    Raises:
        EnvironmentProblemError: it cannot be built, or its modules are not those of the lock.

    """
    digest = hashlib.sha256(b"".join((_GO / name).read_bytes() for name in ("main.go", "go.mod", "go.sum"))).hexdigest()
    program = cache_root() / f"rocketmq-client-go-{digest[:12]}"
    if not program.is_file():
        program.parent.mkdir(parents=True, exist_ok=True)
        # Built in a folder beside it and renamed, so that a program of this name is always complete.
        with tempfile.TemporaryDirectory(prefix=f"{program.name}.new-", dir=program.parent) as fresh:
            made = Path(fresh) / "client"
            done = subprocess.run(
                ["go", "build", "-o", str(made), "."],
                cwd=_GO,
                env={**os.environ, **_SETTINGS},
                capture_output=True,
                text=True,
                timeout=_BUILD_TIMEOUT_S,
                check=False,
            )
            if done.returncode != 0:
                raise EnvironmentProblemError(f"RocketMQ's Go client could not be built:\n{done.stderr[-3000:]}")
            made.rename(program)
    return program
