"""Continued audits by the local engine: one step, or one after the other until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.run import until_leaders_stay
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.engines.violations_topic import Alarms
from txbridge_audit.ledger.place import write_summary
from txbridge_audit.report.alarms import AuditStep
from txbridge_audit.report.model import AuditReport

#: Seconds from the end of a step to the beginning of the next, unless the user says otherwise.
INTERVAL = 2.0
#: Seconds between two looks for new records while nothing is written. A look costs milliseconds of a processor.
LOOK = 0.25
#: Seconds that a cut waits for open Kafka transactions. A worker's take milliseconds. One that is open longer must not
#: delay the step: a later step judges the records that it hides.
SETTLE_TIMEOUT = 2.0
#: Seconds between two writes of the ledger: each makes a file for every day.
LEDGER_EVERY = 600.0
#: Seconds between two steps while nothing is written. Time makes transactions overdue, and retention removes records.
QUIET = 30.0


def continue_once(source: AuditedTopics, ledger: Path, plan: Plan) -> AuditReport:
    """Make one step of the ledger in this folder. Raises CouldNotAuditError."""
    state = StateStore(ledger)
    try:
        steps = LocalSteps(source, state)
        report = until_leaders_stay(source.say, lambda: steps.step(plan, ledger=ledger)).report
        write_summary(report.to_json(), ledger)
        return report
    finally:
        state.close()


@dataclass(frozen=True, slots=True)
class Following:
    """How an audit follows."""

    stop: threading.Event
    #: Where each violation is written once; None for nowhere.
    violations_topic: str | None
    interval: float
    #: The plan of a step that begins at this time (ms).
    plan: Callable[[int], Plan]
    #: Called when the first step may begin, and after each.
    on_ready: Callable[[], None]
    on_step: Callable[[AuditStep], None]


def follow(source: AuditedTopics, ledger: Path, how: Following) -> AuditReport:
    """Make steps until `stop` is set, then a last one. Returns the report of everything so far.

    Raises CouldNotAuditError. When it is called again, it continues after the last step that counts.
    """
    state = StateStore(ledger)
    try:
        steps = LocalSteps(source, state)
        alarms = None
        if how.violations_topic is not None:
            alarms = Alarms(source.settings, source.cluster, how.violations_topic, steps.audit)
            alarms.recall(steps.alarms)
        how.on_ready()
        began = 0.0
        while True:
            last, now = how.stop.is_set(), time.time()
            if not last and now - began < QUIET and not steps.has_news():
                how.stop.wait(min(LOOK, how.interval))
                continue
            began = now
            plan = how.plan(int(now * 1000))
            raising = alarms.send if alarms else None
            closing = last or now - steps.written_at > LEDGER_EVERY
            make = partial(steps.step, plan, raising, ledger=ledger if closing else None)
            step = until_leaders_stay(source.say, make)
            how.on_step(step)
            if last:
                write_summary(step.report.to_json(), ledger)
                return step.report
            how.stop.wait(how.interval)
    finally:
        state.close()
