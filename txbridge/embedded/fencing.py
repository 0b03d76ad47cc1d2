"""Fencing of the former broker by its controller alone, before a broker starts again on its data.

Kafka 4.3.1 drops the markers of a Kafka transaction if its partitions have no leader when the transaction coordinator
wants to write them. It takes the partitions for deleted and records the transaction as complete. The reason:
KRaftMetadataCache.getPartitionLeaderEndpoint answers "unknown partition". Up to 4.2 it answered "no node yet", and the
coordinator tried again; 4.4.0 does as 4.3.1 (KAFKA-20734). The transaction then hangs forever: readers of committed
records stop in front of it.

On one node this happens at nearly every restart under load. After a crash the new broker takes its former registration
for its own. It becomes coordinator, has markers to write, and cannot reach itself yet. Then the controller ends the
former session. For an instant no partition has a leader, and the markers are lost. If the session was ended before, the
broker becomes leader of all partitions at once, when it is ready, and writes the markers.

Older versions do not need this, and it does not work with them. The controller of 3.9 ends no session before a first
broker has contacted it. The controller of 4.0 keeps the broker out for a whole session anyway. With older versions the
sessions are Kafka's own, and a restart waits until the former one has ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from txbridge.deadline import Deadline
from txbridge.embedded import config
from txbridge.embedded.datadir import DataDir
from txbridge.embedded.java import KafkaStartError, describe_failure, read_tail
from txbridge.embedded.process import ChildProcess

# The controller needs 0.7 s on an idle machine; a minute is for an overloaded one.
_TIMEOUT_S = 60.0
# Seconds between two reads of its log: the start is not delayed by more than this.
_POLL_S = 0.02
# A controller ends in 0.2 s.
_END_TIMEOUT_S = 5.0

_ACTIVE = "Performing controller activation"
_SESSION = re.compile(r"Broker(?:RegistrationChange)?Record\(brokerId=1,.*?\bfenced=(true|false|-?[01])")
# A registration has true or false. A change of it has 1 (fenced), -1 (no longer fenced) or 0 (as before).
_FENCED = {"true": True, "1": True, "false": False, "-1": False}
# A record counts when it is on disk, 25 ms or more after the controller has acted on it. A controller that ends before
# that loses it. Many operations check the sessions meanwhile; only the one that wrote the record logs that it will
# be completed.
_WRITTEN = re.compile(r"Read-write operation (maybeFenceStaleBroker\(\d+\)) will be completed")


#: For a version without fencing: Kafka's own time-out instead of a session that never ends.
OWN_SESSION = {"broker.session.timeout.ms": "9000"}


def is_needed(version: str) -> bool:
    """Whether this version of Kafka loses transaction markers at a restart."""
    major, minor = version.split(".")[:2]
    return (int(major), int(minor)) >= (4, 3)


def is_fenced(log: str) -> bool:
    """Whether the log of a controller says that it is active and that no broker has a session."""
    loaded, active, since = log.partition(_ACTIVE)
    if not active:
        return False
    changed = [(change.end(), _FENCED[change[1]]) for change in _SESSION.finditer(since) if change[1] in _FENCED]
    if changed:
        end, fenced = changed[-1]
        written = _WRITTEN.search(since, end)
        return fenced and written is not None and f"Processed {written[1]} " in since[written.end() :]
    before = [_FENCED[state] for state in _SESSION.findall(loaded) if state in _FENCED]
    return not before or before[-1]


def fence_former_broker(
    data: DataDir,
    controller_port: int,
    overrides: Mapping[str, str],
    java_command: Callable[[Path, Path], Sequence[str | Path]],
) -> None:
    """End the session of the broker that ran on these data before; returns when that is on disk.

    `java_command` gives the command up to the class path for a folder of logs and a log configuration. Raises
    KafkaStartError.
    """
    logs = data.logs / "fencing"
    properties, log_config = data.path / "fencing.properties", data.path / "fencing.log4j2.xml"
    log, console = logs / "server.log", logs / "console.log"
    with data.os_errors():
        logs.mkdir(exist_ok=True)
        for old in (log, console):
            old.unlink(missing_ok=True)
        properties.write_text(
            config.render_properties(config.fencing_properties(controller_port, data.kafka, overrides)),
            encoding="ascii",
        )
        log_config.write_text(config.log4j2_configuration(config.FENCING_LOGGERS), encoding="ascii")
    child = ChildProcess.launch_program([*java_command(logs, log_config), "kafka.Kafka", properties], output=console)
    try:
        deadline = Deadline(_TIMEOUT_S)
        while (
            not (fenced := log.exists() and is_fenced(log.read_text(errors="replace")))
            and child.poll() is None
            and not deadline.is_over
        ):
            time.sleep(_POLL_S)
        code = child.poll()
        if not fenced:
            how = f"did not do so within {_TIMEOUT_S:.0f} s" if code is None else f"ended with exit code {code}"
            output = read_tail(console) + read_tail(log)
            what = f"the controller that ends the former broker's session on {data.path} {how}"
            raise KafkaStartError(describe_failure(what, output, log if log.exists() else console), code, output)
        child.stop(_END_TIMEOUT_S)
    finally:
        child.kill()
