"""The wheel in a fresh environment, as `pip install txbridge` makes it: the packages that it brings, and first use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.support.command_line import run
from tests.support.harness import Bridge

ROOT = Path(__file__).parents[2]
#: Packages of a service that sends, besides those of the plain environment.
PACKAGES = {"confluent-kafka", "txbridge"}

PROGRAM = """
import sys
from txbridge import LocalTransactionState, Message, TransactionListener, TransactionProducer

class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT_MESSAGE

    def check_local_transaction(self, message):
        return LocalTransactionState.UNKNOWN

servers, namespace, topic = sys.argv[1:]
settings = {"bootstrap.servers": servers}
with TransactionProducer("alone", Listener(), settings, namespace=namespace) as producer:
    result = producer.send_message_in_transaction(Message(topic, b"from the wheel"))
    result.wait()
    print(result.local_transaction_state.name)
"""


def pip(*words: str | Path) -> None:
    done = run(
        [sys.executable, "-m", "pip", *map(str, words)], env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr


def python(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the Python of an environment, without access to the checkout."""
    return run(
        [folder / "bin" / "python", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTHON")},
        timeout=120,
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Environment with only the wheel and the packages that pip installs for it, in the locked versions."""
    folder = tmp_path_factory.mktemp("installation")
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    [wheel] = folder.glob("txbridge-*.whl")
    pins = re.findall(r"^[a-z0-9-]+==[^ ]+", (ROOT / "requirements/lock.txt").read_text(), re.MULTILINE)
    (folder / "locked.txt").write_text("\n".join(pins) + "\n")
    venv.create(folder / "venv")
    target = folder / "venv" / "bin" / "python"
    pip("--python", target, "install", "--quiet", "--no-compile", "-c", folder / "locked.txt", wheel)
    return folder / "venv"


def test_the_wheel_brings_confluent_kafka_and_nothing_else(alone: Path) -> None:
    program = "import importlib.metadata as m; print(*sorted({one.name.lower() for one in m.distributions()}))"
    assert set(python(alone, "-c", program).stdout.split()) == PACKAGES


def test_a_transaction_from_the_wheel_alone(alone: Path, bridge: Bridge) -> None:
    topic = bridge.create_topic("orders")
    bridge.worker()
    done = python(alone, "-c", PROGRAM, bridge.bootstrap_servers, bridge.namespace, topic)
    assert (done.returncode, done.stdout, done.stderr) == (0, "COMMIT_MESSAGE\n", "")
    bridge.wait_visible(topic, [b"from the wheel"])


def test_the_command_says_which_extra_it_needs(alone: Path) -> None:
    done = run([alone / "bin" / "txbridge", "topics", "plan"])
    said = "error: the command line needs typer, rich and pydantic: pip install 'txbridge[cli]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_metrics_say_which_extra_they_need(alone: Path) -> None:
    done = python(alone, "-c", "from txbridge import ClientMetrics; ClientMetrics(None)")
    assert done.stderr.splitlines()[-1] == (
        "txbridge.errors.MissingExtraError: ClientMetrics needs prometheus-client: pip install 'txbridge[metrics]'"
    )
