"""A real MariaDB for tests, if its programs are on the PATH and PyMySQL is there: on a Unix socket of its own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import create_engine, make_url

_PROGRAMS = ("mariadbd", "mariadb-install-db")
_START_TIMEOUT_S = 60.0
#: It does not wait for the disk. Its zone is not UTC, as that of many servers.
_SETTINGS = ("--skip-networking", "--innodb-flush-log-at-trx-commit=0", "--default-time-zone=+05:00")

IS_THERE = all(map(shutil.which, _PROGRAMS)) and importlib.util.find_spec("pymysql") is not None


@contextmanager
def running_mariadb() -> Iterator[str]:
    """The URL of a database of a new server, as SQLAlchemy writes it."""
    # Not pytest's folder: the path of a Unix socket is short.
    folder = Path(tempfile.mkdtemp(prefix="txb-mdb-"))
    server, install = (shutil.which(name) for name in _PROGRAMS)
    assert server is not None
    assert install is not None
    data, socket = folder / "data", folder / "socket"
    # `usr` of the installation; the server takes root if it is named.
    common = [f"--basedir={Path(server).parent.parent}", f"--datadir={data}"]
    common += ["--user=root"] if os.geteuid() == 0 else []
    with (folder / "log").open("wb") as log:
        made = ["--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run([install, "--no-defaults", *common, *made], check=True, stdout=log, stderr=log)
        process = subprocess.Popen(
            [server, "--no-defaults", *common, *_SETTINGS, f"--socket={socket}", f"--pid-file={folder / 'pid'}"],
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        # Not by trying: PyMySQL leaves a socket behind when nobody listens.
        while not socket.exists():
            alive = process.poll() is None and time.monotonic() < deadline
            assert alive, f"MariaDB did not start:\n{(folder / 'log').read_text()[-3000:]}"
            time.sleep(0.1)
        admin = create_engine(f"mysql+pymysql://root@/mysql?unix_socket={socket}")
        with admin.begin() as connection:
            connection.exec_driver_sql("CREATE DATABASE shop")
        admin.dispose()
        yield f"mysql+pymysql://root@/shop?unix_socket={socket}"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(60)
        shutil.rmtree(folder, ignore_errors=True)


def in_new_database(url: str, name: str) -> str:
    """The URL of another database of the server, which is made. Statements wait for locks for a second."""
    admin = create_engine(url)
    with admin.begin() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    made = make_url(url).set(database=name)
    return made.update_query_dict({"init_command": "SET innodb_lock_wait_timeout = 1"}).render_as_string()
