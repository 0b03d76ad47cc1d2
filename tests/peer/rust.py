"""RocketMQ's Rust client, locked like its jars: cargo checks each crate against `rust/Cargo.lock`."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.peer.cache import cached, named_by, run

_RUST = Path(__file__).with_name("rust")
_FILES = tuple(_RUST / file for file in ("main.rs", "Cargo.toml", "Cargo.lock"))
# The build of 250 crates takes two minutes of processor time, after they are fetched.
_BUILD_TIMEOUT_S = 900.0


def rust_client() -> Path:
    """Path of the program, built if it is not in the cache. EnvironmentProblemError if that is not possible."""
    return cached(named_by("rocketmq-client-rust", *_FILES), _build) / "client"


def _build(folder: Path) -> None:
    for file in _FILES:
        shutil.copy(file, folder)
    # Our lock file names no registry. Cargo writes the name of its own into a new one.
    lock, locked = folder / "Cargo.lock", _FILES[2].read_text()
    lock.unlink()
    run(["cargo", "generate-lockfile", "--quiet"], folder, _BUILD_TIMEOUT_S)
    found = re.search('^source = "(.+)"$', lock.read_text(), re.MULTILINE)
    assert found is not None, lock
    lock.write_text(locked.replace('source = "registry"', f'source = "{found[1]}"'))
    run(["cargo", "build", "--quiet", "--locked"], folder, _BUILD_TIMEOUT_S)
    (folder / "target" / "debug" / "client").rename(folder / "client")
    shutil.rmtree(folder / "target")
