"""RocketMQ's clients in Go, Node and Rust, locked like its jars.

Go checks each module against `go.sum`, npm each package against `node/package-lock.json`, cargo each crate against
`rust/Cargo.lock`.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from tests.peer.cache import cached, named_by, run

# Of processor time, after all is fetched, a build takes one minute for Go's own library, and two for Rust's 250 crates.
_BUILD_TIMEOUT_S = 900.0
#: Folders of the program of the remoting protocol, and of that of gRPC.
GO_REMOTING, GO_GRPC = (Path(__file__).with_name(name) for name in ("go", "go5"))
#: Go must not fetch another compiler, nor change the locked versions.
_GO_SETTINGS = {"GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly", "CGO_ENABLED": "0"}


def go_client(module: Path, package: str = ".") -> Path:
    """Path of a program, built if it is not in the cache. EnvironmentProblemError if that is not possible."""
    files = (module / package / "main.go", module / "go.mod", module / "go.sum")
    name = named_by("rocketmq-client-golang", *files)

    def build(folder: Path) -> None:
        command = ["go", "build", "-o", f"{folder}/client", f"./{package}"]
        run(command, module, _BUILD_TIMEOUT_S, {**os.environ, **_GO_SETTINGS})

    return cached(name, build) / "client"


#: Folder of the program `client.js` and its lock file.
NODE = Path(__file__).with_name("node")
_NODE_FILES = (NODE / "package.json", NODE / "package-lock.json")
# npm took 3 s, and has time-outs of its own for a registry that does not answer.
_FETCH_TIMEOUT_S = 300.0


def node_packages() -> Path:
    """Path of the folder with all packages, fetched if they are not in the cache.

    EnvironmentProblemError if that is not possible.
    """
    return cached(named_by("rocketmq-client-nodejs", *_NODE_FILES), _fetch_node) / "node_modules"


def _fetch_node(folder: Path) -> None:
    for file in _NODE_FILES:
        shutil.copy(file, folder)
    # No code of a package may run while it is fetched.
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder, _FETCH_TIMEOUT_S)


_RUST = Path(__file__).with_name("rust")
_RUST_FILES = tuple(_RUST / file for file in ("main.rs", "Cargo.toml", "Cargo.lock"))


def rust_client() -> Path:
    """Path of the program, built if it is not in the cache. EnvironmentProblemError if that is not possible."""
    return cached(named_by("rocketmq-client-rust", *_RUST_FILES), _build_rust) / "client"


def _build_rust(folder: Path) -> None:
    for file in _RUST_FILES:
        shutil.copy(file, folder)
    # Our lock file names no registry. Cargo writes the name of its own into a new one.
    lock, locked = folder / "Cargo.lock", _RUST_FILES[2].read_text()
    lock.unlink()
    run(["cargo", "generate-lockfile", "--quiet"], folder, _BUILD_TIMEOUT_S)
    found = re.search('^source = "(.+)"$', lock.read_text(), re.MULTILINE)
    assert found is not None, lock
    lock.write_text(locked.replace('source = "registry"', f'source = "{found[1]}"'))
    run(["cargo", "build", "--quiet", "--locked"], folder, _BUILD_TIMEOUT_S)
    (folder / "target" / "debug" / "client").rename(folder / "client")
    shutil.rmtree(folder / "target")
