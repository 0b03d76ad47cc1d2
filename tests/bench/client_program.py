"""A pipelined client in a process of its own: `python -m tests.bench.client_program SERVERS NAMESPACE TOPIC`.

Each line of its input is a JSON object with the `count` of transactions to send and the `size` of their values. When
all is acknowledged, it answers with the time at which it began (`since`, monotonic, s) and its processor time (`cpu`,
s).
"""

from __future__ import annotations

import json
import os
import sys

from tests.bench.load import Clients, Load
from tests.support.harness import cpu_seconds


def main() -> None:
    servers, namespace, topic = sys.argv[1:]
    clients = Clients(servers, namespace)
    for line in sys.stdin:
        wanted = json.loads(line)
        before = cpu_seconds(os.getpid())
        since = clients.pipelined(Load(topic, wanted["count"], wanted["size"])).since
        print(json.dumps({"since": since, "cpu": cpu_seconds(os.getpid()) - before}), flush=True)


if __name__ == "__main__":
    main()
