"""Environment and files of other programs beside a worker: they neither stop nor redirect it."""

from __future__ import annotations

import os
from pathlib import Path

from faust.types.settings import Settings

from tests.support.harness import COMMIT, Bridge


def test_variables_of_other_programs_neither_stop_nor_redirect_a_worker(bridge: Bridge, tmp_path: Path) -> None:
    """Kubernetes sets WEB_PORT for a Service called web, Celery has BROKER_URL, and images carry APP_VERSION."""
    hostile = {str(param.env_name): "tcp://10.0.0.1:80" for param in Settings.SETTINGS.values() if param.env_name}
    hostile |= {
        "APP_VERSION": "1.4.2",
        "BROKER_URL": "kafka://127.0.0.1:1",
        "CONSUMER_GROUP_INSTANCE_ID": "one",
        "F_WEB_PORT": "tcp://10.0.0.1:80",
        "FAUST_BLOCKING_TIMEOUT": "soon",
        "DJANGO_SETTINGS_MODULE": "no.such.settings",
        "PROMETHEUS_MULTIPROC_DIR": "/nowhere",
        "TMPDIR": str(tmp_path),
    }
    # A file at the place that every worker of this user once used as a folder.
    (tmp_path / f"txbridge-faust-{os.getuid()}").write_text("not a folder")
    topic = bridge.create_topic("real")
    worker = bridge.worker(environment=hostile)
    bridge.decide(bridge.prepare(topic, b"value"), COMMIT)
    bridge.wait_visible(topic, [b"value"])
    assert worker.stop() == 0
    assert "Traceback" not in worker.log
    assert [event["level"] for event in worker.events("worker_started")] == ["info"]
