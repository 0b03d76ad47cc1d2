"""Continued audits by the local engine: one step, or one after the other until it is stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.run import until_leaders_stay
from txbridge_audit.engines.local.state import StateStore
from txbridge_audit.engines.local.steps import LocalSteps
from txbridge_audit.engines.violations_topic import Alarms
from txbridge_audit.ledger.place import write_summary
from txbridge_audit.report.model import AuditReport, AuditStep

#: Seconds from the end of a step to the beginning of the next, unless the user says otherwise. Beside 2,000
#: transactions a second a violation was raised after 0.7 s, and after 8 s with pauses of 2 s, whose steps are larger.
#: Both took a quarter of a processor. Beside 20 a second it costs 0.05 instead of 0.02 processors.
#: `tests.bench follow --rate` measures it.
INTERVAL = 0.3
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
    with closing(StateStore(ledger)) as state:
        steps = LocalSteps(source, state)
        report = until_leaders_stay(source.say, lambda: steps.make_step(plan, ledger=ledger)).report
        write_summary(report.to_json(), ledger)
        return report


def follow(
    source: AuditedTopics,
    ledger: Path,
    plan_at: Callable[[int], Plan],
    *,
    stop: threading.Event,
    violations_topic: str | None,
    interval: float,
    on_ready: Callable[[], None],
    on_step: Callable[[AuditStep], None],
) -> AuditReport:
    """Make steps until `stop` is set, then a last one. `plan_at` gives the plan of a step that begins at a time (ms).

    See txbridge_audit.audit.follow.
    """
    with closing(StateStore(ledger)) as state:
        steps, raise_all = LocalSteps(source, state), None
        if violations_topic is not None:
            alarms = Alarms(source.settings, source.cluster, violations_topic, steps.audit)
            alarms.recall(steps.alarms)
            raise_all = alarms.send
        on_ready()
        began = 0.0
        while True:
            last, now = stop.is_set(), time.time()
            if not last and now - began < QUIET and not steps.has_news():
                stop.wait(min(LOOK, interval))
                continue
            began = now
            into = ledger if last or now - steps.written_at > LEDGER_EVERY else None
            make = partial(steps.make_step, plan_at(int(now * 1000)), raise_all, ledger=into)
            step = until_leaders_stay(source.say, make)
            on_step(step)
            if last:
                write_summary(step.report.to_json(), ledger)
                return step.report
            stop.wait(interval)
