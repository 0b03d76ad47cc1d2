"""The packages of RocketMQ's Node client, locked like its jars: npm checks each against `node/package-lock.json`."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.peer.cache import cached, named_by, run

#: Folder of the program `client.js` and its lock file.
NODE = Path(__file__).with_name("node")
_FILES = (NODE / "package.json", NODE / "package-lock.json")
# npm took 3 s, and has time-outs of its own for a registry that does not answer.
_FETCH_TIMEOUT_S = 300.0


def node_packages() -> Path:
    """Path of the folder with all packages, fetched if they are not in the cache.

    EnvironmentProblemError if that is not possible.
    """
    return cached(named_by("rocketmq-client-nodejs", *_FILES), _fetch) / "node_modules"


def _fetch(folder: Path) -> None:
    for file in _FILES:
        shutil.copy(file, folder)
    # No code of a package may run while it is fetched.
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder, _FETCH_TIMEOUT_S)
