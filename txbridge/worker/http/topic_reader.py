"""Reads topics for the status page, as a process: `python -m txbridge.worker.http.topic_reader`.

It reads its order from stdin, as one line of JSON. It writes its progress and its answer to stdout, one line each. It
ends when stdin does, so it never outlives its worker. topic_reading.py starts it.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from heapq import nsmallest
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from txbridge import log
from txbridge.config.worker import WorkerSettings
from txbridge.errors import TxBridgeError, UsageError
from txbridge.operations import Connection, OpenMessage, read_history
from txbridge.operations.causes import next_step_of, trouble_of
from txbridge.operations.overview import OpenOverview, read_overview
from txbridge.text import plain

#: Most messages that are shown, of one cause and of all causes together.
MOST_SHOWN = 100
#: Most causes that are shown; the others are counted.
_MOST_CAUSES = 50
#: Most steps of a history. Any client that can write to END can add steps to it.
_MOST_STEPS = 500
#: Most characters of a cause, an error and a remark.
_LONGEST = 500
#: Most resident memory. Half a million parked messages take about this much.
_MOST_MEMORY_BYTES = 512 * 1024 * 1024
_LOOK_EVERY_S = 0.2


def main() -> None:
    """Carry out the order on stdin."""
    # Kafka and the worker come first.
    os.nice(19)
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_watch, daemon=True).start()
    settings = WorkerSettings(**order["settings"])
    log.configure(settings.log_format, settings.log_level)
    try:
        connection = Connection.open(settings)
        if "of" in order:
            answer = _history(connection, order["of"])
        else:
            answer = _overview(read_overview(connection, MOST_SHOWN, progress=_report_progress))
    except UsageError as error:
        _write({"mistake": str(error)})
    except TxBridgeError as error:
        _write({"error": str(error)})
    except KafkaException as failure:
        _write({"error": failure.args[0].str()})
    except Exception as error:  # noqa: BLE001 - a defect of ours is logged by the worker
        _write({"defect": repr(error)})
    else:
        _write({"answer": answer})
    # Threads of librdkafka may take seconds to end.
    os._exit(0)


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _report_progress(done: int, of: int) -> None:
    _write({"progress": [done, of]})


def _watch() -> None:
    """End this process with its worker, or when it takes too much memory."""
    statm = Path("/proc/self/statm")
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    while True:
        if select.select([sys.stdin], [], [], _LOOK_EVERY_S)[0]:
            os._exit(1)
        if statm.exists() and int(statm.read_text().split()[1]) * page_bytes > _MOST_MEMORY_BYTES:
            text = "this needs too much memory; `txbridge pending` and `txbridge show` have no limit"
            os.write(1, json.dumps({"error": text}).encode() + b"\n")
            os._exit(1)


def _history(connection: Connection, target: str) -> dict[str, Any]:
    found = asdict(read_history(connection, target))
    if len(found["steps"]) > _MOST_STEPS:
        left_out = len(found["steps"]) - _MOST_STEPS
        found["steps"] = found["steps"][:_MOST_STEPS]
        found["missing"] = [*found["missing"], f"{left_out:,} later steps; `txbridge show` has them"]
    for step in found["steps"]:
        step["detail"] = plain(step["detail"], _LONGEST)
    return found


def _overview(overview: OpenOverview) -> dict[str, Any]:
    states: dict[str, int] = {}
    for cause in overview.causes:
        states[cause.state.value] = states.get(cause.state.value, 0) + cause.count
    return {
        "at": overview.at,
        "partitions": overview.partitions,
        "total": overview.total,
        "states": states,
        "causes": [
            {
                "name": cause.name,
                "text": plain(cause.text, _LONGEST),
                "state": cause.state.value,
                "count": cause.count,
                "messages": list(_rows(cause.oldest, overview.at)),
            }
            for cause in overview.causes[:_MOST_CAUSES]
        ],
        "more_causes": max(0, len(overview.causes) - _MOST_CAUSES),
        "unread": {str(partition): why for partition, why in overview.unread.items()},
        "warnings": list(overview.warnings[:_MOST_CAUSES]),
        "messages": list(_rows((message for cause in overview.causes for message in cause.oldest), overview.at)),
    }


def _rows(messages: Iterable[OpenMessage], now: int) -> Iterator[dict[str, Any]]:
    def age(message: OpenMessage) -> tuple[int, int, int]:
        return message.born, message.partition, message.half_offset

    for message in nsmallest(MOST_SHOWN, messages, key=age):
        yield {
            "of": message.coordinates,
            "id": message.short_id,
            "state": message.state.value,
            "group": message.group,
            "topic": message.real_topic,
            "age": max(0, now - message.born) / 1000,
            "checks": message.checks,
            "next": next_step_of(message, now),
            "trouble": plain(trouble_of(message), _LONGEST),
        }


if __name__ == "__main__":
    main()
