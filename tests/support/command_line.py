"""The command line of txbridge in a process of its own, as a user runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.forked import start_program

#: Is a part of secrets that no program may show.
MARK = "s3cret-MARK"
_SECRETS = {
    "sasl.password": MARK,
    "sasl.oauthbearer.token.endpoint.url": f"https://me:{MARK}@idp.example/token?code={MARK}",
    "ssl.certificate.pem": f"-----BEGIN PRIVATE KEY-----\n{MARK}\n-----END PRIVATE KEY-----\n",
}
#: A variable that gives Kafka properties with secrets of every kind, without its prefix.
SECRET_KAFKA = {"KAFKA": json.dumps(_SECRETS)}
MODULE = "txbridge.cli.main"
PROGRAM = (sys.executable, "-m", MODULE)
#: Every command, with the arguments that it needs. {folder} stands for the test's own folder.
COMMANDS = {
    "worker": [],
    "topics plan": [],
    "topics apply": [],
    "topics acls": ["--role", "client", "--group", "orders", "--principal", "User:orders"],
    "doctor": [],
    "audit": [],
    "pending": [],
    "show": ["0:1"],
    "resolve": ["0:1", "commit", "--reason", "test"],
    "resume": ["0:1", "--reason", "test"],
    "resolve-all": ["commit", "--cause", "test", "--dry-run"],
    "acknowledge": ["0", "--reason", "test"],
    "answer-checks": ["--group", "orders", "--database-url", "sqlite:///{folder}/answer-checks.db"],
    "relay": ["--database-url", "sqlite:///{folder}/relay.db"],
    "purge": ["--database-url", "sqlite:///{folder}/purge.db"],
    "rocketmq": ["--listen", "127.0.0.1:0"],
    "demo": ["--folder", "{folder}/demo", "--flights", "10"],
    "dev": ["--data-dir", "{folder}/dev", "--port", "0", "--metrics-port", "0"],
    "kafka start": ["--data-dir", "{folder}/kafka", "--port", "0"],
    "kafka stop": ["--data-dir", "{folder}/kafka"],
    "kafka status": ["--data-dir", "{folder}/kafka"],
}
#: Commands that use a cluster, which the environment names.
OFF_CLUSTER = {"demo", "dev", "kafka", "purge", "topics acls"}
ON_CLUSTER = [one for one in COMMANDS if OFF_CLUSTER.isdisjoint({one, one.partition(" ")[0]})]
ON_DATABASE = [one for one, words in COMMANDS.items() if "--database-url" in words]
#: Commands that serve until Ctrl-C ends them with exit code 0.
SERVING = {"worker", "rocketmq", "answer-checks", "relay", "dev", "kafka start"}


def run(command: Sequence[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return what it printed. `options` are those of subprocess.run."""
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def run_txbridge(
    *arguments: str, timeout: float = 800, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Do so with a command of txbridge."""
    words = [MODULE, *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = start_program(words, os.environ if env is None else env, out, err, cwd)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())
