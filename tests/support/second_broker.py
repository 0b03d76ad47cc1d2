"""A second real broker beside an embedded Kafka, for tests in which one of several brokers is away."""

from __future__ import annotations

import re
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from txbridge.embedded import EmbeddedKafka, Node
from txbridge.embedded.config import broker_properties
from txbridge.embedded.datadir import DataDir
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import find_java
from txbridge.embedded.node import JavaRuntime, Launch
from txbridge.embedded.ports import HOST, free_port

#: Node ids. The embedded broker is the controller, too.
FIRST, SECOND = 1, 2
#: Setting for the embedded Kafka: time after which a dead broker counts as gone (ms). Its default of 24 days is for one
#: node.
SESSION = {"broker.session.timeout.ms": "3000"}


class SecondBroker(Node):
    """A broker that joins the cluster of a running embedded Kafka. It has only partitions that are assigned to it."""

    def __init__(self, first: EmbeddedKafka, config: Mapping[str, str] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="txbridge-second-")
        super().__init__(SECOND, DataDir(Path(self._folder.name)), threading.RLock())
        self._config = config or {}
        self._first = first

    def __enter__(self) -> Self:
        [first], port = self._first.brokers, free_port()
        cluster = first.data.cluster_id()
        controller = re.search(r"controller\.quorum\.voters=.*:(\d+)", first.data.properties.read_text())
        assert cluster is not None
        assert controller is not None
        own = {
            **self._config,
            "process.roles": "broker",
            "node.id": str(SECOND),
            "listeners": f"PLAINTEXT://{HOST}:{port}",
        }
        runtime = JavaRuntime(find_java(), JarCache().class_path, "256m", "fast-start", self._first.version)
        with self.claim_folder() as lock:
            self.data.write_config(broker_properties(port, int(controller[1]), self.data.kafka, own))
            self.format_folder(cluster, runtime)
            self.launch_process(Launch(runtime, port, cluster, may_detach=False, scratch=None), lock)
        self.wait_ready()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()
