"""The packages of RocketMQ's Node client, locked like its jars: npm checks each against `node/package-lock.json`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from txbridge.embedded.paths import cache_root
from txbridge.errors import EnvironmentProblemError

#: Folder of the program `client.js` and its lock file.
NODE = Path(__file__).with_name("node")
_FILES = ("package.json", "package-lock.json")
# npm took 3 s, and has time-outs of its own for a registry that does not answer.
_FETCH_TIMEOUT_S = 300.0


def node_packages() -> Path:
    """Path of the folder with all packages, fetched into the cache of txbridge if they are not there.

    Raises:
        EnvironmentProblemError: they cannot be had, or are not those of the lock.

    """
    digest = hashlib.sha256(b"".join((NODE / name).read_bytes() for name in _FILES)).hexdigest()
    folder = cache_root() / f"rocketmq-client-nodejs-{digest[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Fetched into a folder beside it and renamed, so that a folder of this name is always complete.
        fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.new-", dir=folder.parent))
        try:
            _fetch(fresh)
            if not folder.is_dir():  # another process may have been quicker
                fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return folder / "node_modules"


def _fetch(folder: Path) -> None:
    for name in _FILES:
        shutil.copy(NODE / name, folder)
    # No code of a package may run while it is fetched.
    command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise EnvironmentProblemError(f"npm could not fetch RocketMQ's Node client:\n{done.stderr[-3000:]}")
