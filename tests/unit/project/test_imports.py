"""The modules that an import of the client or the front door loads."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.support.source import ROOT

ROOTS = {
    "txbridge": ROOT,
    "txbridge_audit": ROOT / "spark",
    "txbridge_sqlalchemy": ROOT / "connectors",
    "txbridge_rocketmq": ROOT / "connectors",
}


def loaded_by(statements: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after these statements."""
    program = f"import sys\n{statements}\nimport json\nprint(json.dumps(sorted(sys.modules)))"
    # -S and an empty environment exclude additions by a test run or an editable installation.
    path = [*map(str, ROOTS.values()), *(one for one in sys.path if one.endswith("site-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        env={"PYTHONPATH": ":".join(path)},
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    return set(json.loads(done.stdout))


def test_the_client_loads_confluent_kafka_and_nothing_else_that_is_installed():
    loaded = loaded_by(
        "from txbridge import AsyncTransactionProducer, TransactionProducer\nimport txbridge.client.start"
    )
    others = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names)
    # confluent-kafka imports typing_extensions.
    assert others - {"typing_extensions"} == {"__main__", "confluent_kafka", "txbridge"}


def test_the_front_door_needs_nothing_of_the_workers():
    loaded = loaded_by("import txbridge_rocketmq.door_process, txbridge.cli.rocketmq")
    assert loaded & {"faust", "aiokafka", "mode", "txbridge.worker.app"} == set()


def test_what_a_start_needs_is_not_loaded_by_an_import():
    """`from txbridge import TransactionProducer` takes at most 1.5 times as long as `import confluent_kafka`."""
    loaded = loaded_by("from txbridge import TransactionListener, TransactionProducer")
    assert loaded & {"confluent_kafka.admin", "txbridge.client.runtime", "txbridge.topics.verify"} == set()
    assert loaded_by("import txbridge") & {"confluent_kafka", "txbridge.client"} == set()
