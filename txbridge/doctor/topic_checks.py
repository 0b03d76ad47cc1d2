"""Findings about the internal topics and the rights on them: layout, retention against the checks, replication."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.doctor.cluster_view import KAFKAS_OWN, NOBODY, ClusterView, names_of
from txbridge.doctor.finding import Check, Finding, Level, note, ok, problem, unknown, warning
from txbridge.kafka.acl import Pattern, ResourceKind, Right, list_rights, topic
from txbridge.kafka.admin import REQUEST_TIMEOUT_S, UNCLEAN, FoundTopic, MissingRight, TopicRequest
from txbridge.kafka.config import BATCH_BYTES, create, transactional_producer_config
from txbridge.kafka.errors import is_denied
from txbridge.kafka.topic_lookup import LARGEST_BATCH, MARKER_BATCH, marker_problem
from txbridge.text import counted, duration
from txbridge.topics.plan import judge
from txbridge.topics.spec import IN_SYNC, RETENTION, apply_command

#: Copies that survive the loss of one broker while another is being restarted.
_USUAL_COPIES = 3
#: Where a deviation in this property belongs. All others belong to Check.TOPICS.
_CHECKS = {RETENTION: Check.RETENTION, UNCLEAN: Check.REPLICATION, IN_SYNC: Check.REPLICATION}


def topics(view: ClusterView) -> list[Finding]:
    """Findings about missing topics, wrong numbers of partitions and wrong settings."""
    good = []
    if view.has_workers:
        checks = f" and {len(view.groups)} of checks" if view.groups else ""
        good = [f"the five internal topics{checks} are as they must be, with {counted(view.partitions, 'partition')}"]
    if isinstance(outbox := view.seen.get(view.names.outbox), FoundTopic):
        good.append(f"{outbox.name} is as it must be, with {counted(outbox.partitions, 'partition')}")
    return _deviations(view, Check.TOPICS) or [ok(Check.TOPICS, text) for text in good]


def _deviations(view: ClusterView, check: Check) -> list[Finding]:
    found = []
    for one in (one for options in view.options for one in judge(view.names, options, view.seen)):
        if _CHECKS.get(one.change.name if one.change else "", Check.TOPICS) is not check:
            continue
        sight = view.seen[one.topic]
        if isinstance(sight, MissingRight):
            doubt = "it is there, and" if sight.right == "DESCRIBE" else "it is"
            text = f"{one.problem}: whether {doubt} as it must be, is not known"
            do = f"{one.remedy}; `txbridge topics acls` prints the rights of each role"
            found.append(unknown(check, text, do))
        elif sight is None and view.questions.door and one.topic.startswith(view.names.check("")):
            do = "the door creates it with the group's first transaction"
            found.append(note(Check.DOOR, f"{one.topic} does not exist yet", do))
        else:
            level = Level.PROBLEM if one.vital else Level.WARNING
            found.append(Finding(check, level, f"{one.topic}: {one.problem}", one.remedy))
    return found


def retention(view: ClusterView) -> list[Finding]:
    """Findings about retention: it has to keep undecided messages and their records beyond the last check."""
    half, settings = view.half, view.settings
    found = _deviations(view, Check.RETENTION)
    if half is None:
        # The finding about the topic has the reason and the remedy.
        return found
    if not found:
        kept = int(half.config[RETENTION])
        long = "forever" if kept < 0 else f"for {duration(kept)}"
        text = f"{_budget(settings)}; {half.name} keeps messages {long}, END and OP no less"
        found.append(ok(Check.RETENTION, text))
    if (last := settings.check_policy.last_check) < DEFAULT_PATIENCE_S * 1000:
        text = (
            f"the last check of a message comes at an age of {duration(last)}. A listener for SQL rolls a message "
            f"without a row back from {DEFAULT_PATIENCE_S:.0f} s on (its patience): before that such a message is "
            f"discarded"
        )
        do = "with SQL: raise transaction_check_max or transaction_check_interval, or give the listeners a patience "
        found.append(note(Check.RETENTION, text, f"{do}below that age"))
    return found


def _budget(settings: WorkerSettings) -> str:
    checks = counted(settings.transaction_check_max, "check")
    last = settings.transaction_timeout + settings.transaction_check_max * settings.transaction_check_interval
    return (
        f"{checks} {'takes' if checks == '1 check' else 'take'} {duration(last)}, the greatest age is "
        f"{duration(settings.transaction_max_age)}"
    )


def replication(view: ClusterView) -> Iterator[Finding]:
    """Findings about topics that lose records, or cannot be written, when a broker is lost."""
    brokers = len(view.brokers)
    usual = min(_USUAL_COPIES, brokers)
    found = [one for topic in (*view.seen, *KAFKAS_OWN) for one in _copies(view, topic, usual)]
    found += _deviations(view, Check.REPLICATION)
    yield from found
    if brokers == 1:
        yield note(
            Check.REPLICATION,
            "there is one broker, so that nothing is replicated",
            "for anything but tests: at least three brokers",
        )
    elif not found:
        yield ok(Check.REPLICATION, f"all topics have {usual} copies or more, all of them in sync")


def _copies(view: ClusterView, topic: str, usual: int) -> Iterator[Finding]:
    described, sight = view.described.get(topic), view.seen.get(topic)
    if described is None:
        # Kafka creates its own topics when they are first needed.
        return
    leaderless = [one.id for one in described.partitions if one.leader is None]
    behind = [one.id for one in described.partitions if len(one.isr) != len(one.replicas)]
    copies = min(len(one.replicas) for one in described.partitions)
    if leaderless:
        yield problem(
            Check.REPLICATION,
            f"{topic}: partitions {_list(leaderless)} have no leader",
            "start the brokers that have them",
        )
    elif behind:
        yield warning(
            Check.REPLICATION,
            f"{topic}: not all copies of partitions {_list(behind)} are in sync",
            "start the brokers that are missing, or wait until they have caught up",
        )
    if copies < usual:
        yield warning(
            Check.REPLICATION, f"{topic} has {copies} of {usual} copies", "kafka-reassign-partitions.sh adds the others"
        )
    if copies == 2 and isinstance(sight, FoundTopic) and sight.config.get(IN_SYNC) == "1":
        # With two copies, 2 is safe but refuses writes while one broker is down. Three copies have neither problem.
        yield warning(
            Check.REPLICATION,
            f"{topic}: {IN_SYNC} is 1 with 2 copies: what one broker has can be lost with it",
            "have three copies; or set 2, and nothing can be written while one of both brokers is away",
        )


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


def real_topics(view: ClusterView) -> Iterator[Finding]:
    """Findings about topics that take no Kafka transaction, and about real topics that were named and are missing."""
    for name, sight in {**view.seen, **view.real}.items():
        if isinstance(sight, FoundTopic):
            why = marker_problem(int(sight.config.get(LARGEST_BATCH, MARKER_BATCH)))
            if why is not None:
                yield problem(
                    Check.TOPICS,
                    f"no Kafka transaction can write to {name}: {why}",
                    f"raise {LARGEST_BATCH} of {name} (kafka-configs.sh --alter). If the log of a worker has "
                    f"hanging_transaction, then restart the coordinator: see docs/runbook.md",
                )
            if name in view.real and sight.elects_unclean:
                text = f"{UNCLEAN} is true for the real topic {name}: delivered messages can be lost"
                yield warning(Check.REPLICATION, text, "set it to false on the topic (kafka-configs.sh) or the brokers")
        if sight is not None or name not in view.questions.real_topics:
            continue
        # No worker creates one, and a front door only if it was told to.
        if view.questions.creates_topics:
            yield note(Check.DOOR, f"the real topic {name} does not exist yet", "the door creates it when it is named")
        elif view.questions.door:
            yield problem(
                Check.DOOR,
                f"the real topic {name} does not exist: the door answers TOPIC_NOT_EXIST",
                "create it, with as many partitions as the topic of RocketMQ had queues",
            )
        else:
            yield problem(
                Check.TOPICS,
                f"the real topic {name} does not exist: messages for it are held once they are committed",
                f"create it, for example by {apply_command(view.names, '--real-topic', name)}",
            )


_SEE = "`txbridge topics acls` prints the rights of each role"
#: Longer (ms) than any broker accepts (transaction.max.timeout.ms, 15 minutes by default).
_TOO_LONG_MS = 2**31 - 1


def granted(view: ClusterView, groups: Mapping[str, Any]) -> Iterator[Finding]:
    """Findings about missing rights of the role. `groups` are Kafka's descriptions of consumer groups."""
    found = [
        one
        for right in _wanted(view)
        for one in (
            _of_fence(view, right) if right.kind is ResourceKind.TRANSACTIONAL_ID else _of_right(view, groups, right)
        )
    ]
    if view.questions.creates_topics:
        found += _creation(view)
    yield from found
    # Without all topics the rights are not fully known.
    if not found and None not in view.seen.values():
        yield ok(Check.RIGHTS, f"this user has the rights of the role {view.questions.role.value}{_not_examined(view)}")


def _wanted(view: ClusterView) -> list[Right]:
    questions, app_id = view.questions, view.settings.app_id
    found = list_rights(questions.role, view.names, questions.groups, questions.real_topics, app_id=app_id)
    if questions.door:
        found += [topic(name, "WRITE") for name in questions.real_topics]
    # A right on a group or real topic whose name was not given cannot be checked. A shop without relays has no OUTBOX.
    skipped = {"", view.names.check(""), view.names.outbox} - view.seen.keys()
    return [right for right in found if right.pattern is Pattern.PREFIXED or right.name not in skipped]


def _creation(view: ClusterView) -> Iterator[Finding]:
    """Findings about the creation of topics, by a dry run with the missing real topics, or with a made-up name."""
    missing = [name for name, sight in view.real.items() if sight is None] or [NOBODY]
    requests = [TopicRequest(name, 1, 1, {}) for name in missing]
    for reason in view.cluster.create_topics(requests, dry_run=True).values():
        if reason is not None:
            yield problem(
                Check.RIGHTS,
                f"the door could not create a topic (--auto-create-topics): {reason}",
                "grant the right; or name a topic that may be created, with --real-topic",
            )


def _not_examined(view: ClusterView) -> str:
    questions = view.questions
    parts = []
    if (questions.door or questions.role.has_real_topic) and not questions.real_topics:
        parts.append("the real topics were not named (--real-topic)")
    if questions.role.has_group and not questions.groups:
        parts.append("no producer group was named (--group)")
    return f"; {' and '.join(parts)}" if parts else ""


def _of_fence(view: ClusterView, right: Right) -> Iterator[Finding]:
    """Findings about a right on transactional ids, by a producer with an id that nobody has.

    Kafka examines the right, then refuses the time-out, and writes nothing. Nobody is fenced where it is accepted.
    """
    config = transactional_producer_config(
        view.settings.librdkafka,
        transactional_id=f"{right.name}{NOBODY}",
        commit_timeout_ms=_TOO_LONG_MS,
        max_message_bytes=BATCH_BYTES,
    )
    try:
        create(Producer, config).init_transactions(REQUEST_TIMEOUT_S)
    except KafkaException as failure:
        error = failure.args[0]
        if error.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            yield _missing("WRITE", f"transactional id {right.name}*")
        elif error.code() != KafkaError.INVALID_TRANSACTION_TIMEOUT:
            text = f"whether this user has WRITE on transactional id {right.name}* is not known: {error.str()}"
            yield unknown(Check.RIGHTS, text, _SEE)


def _missing(operations: str, resource: str) -> Finding:
    do = f"grant it to the user of this connection; {_SEE}"
    return problem(Check.RIGHTS, f"missing right {operations} on {resource}", do)


def _of_right(view: ClusterView, groups: Mapping[str, Any], right: Right) -> Iterator[Finding]:
    """Findings about one right. Resources with the same result share a line."""
    unasked: list[str] = []
    lacking: dict[str, list[str]] = {}
    for name in _names(view, right):
        has = _has(view, groups, right, name)
        if has is None:
            unasked.append(name)
        elif missing := ", ".join(operation for operation in right.operations if operation not in has):
            lacking.setdefault(missing, []).append(name)
    kind = right.kind.value.lower()
    if unasked:
        wanted = ", ".join(right.operations)
        yield unknown(
            Check.RIGHTS, f"whether this user has {wanted} on {kind} {_abbreviated(unasked)} is not known", _SEE
        )
    for missing, names in lacking.items():
        yield _missing(missing, f"{kind} {_abbreviated(names)}")


def _abbreviated(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _names(view: ClusterView, right: Right) -> list[str]:
    """The resources that a right is for and that exist."""
    if right.pattern is Pattern.LITERAL:
        # The rights on a missing topic cannot be known. The findings about topics name it.
        sights = {**view.seen, **view.real}
        return [] if right.kind is ResourceKind.TOPIC and sights.get(right.name, right) is None else [right.name]
    if right.kind is ResourceKind.TOPIC:
        return [name for name, sight in view.seen.items() if name.startswith(right.name) and sight is not None]
    return [group for group in map(view.names.check, view.groups) if group.startswith(right.name)]


def _has(view: ClusterView, groups: Mapping[str, Any], right: Right, name: str) -> frozenset[str] | None:
    """The operations that are granted; None when that cannot be known."""
    match right.kind:
        case ResourceKind.CLUSTER:
            return view.operations
        case ResourceKind.TOPIC:
            described = view.described.get(name)
            return (
                (frozenset() if isinstance(view.seen.get(name), MissingRight) else None)
                if described is None
                else names_of(described.authorized_operations)
            )
        case _:
            answer = groups.get(name)
            if isinstance(answer, KafkaError):
                return frozenset() if is_denied(answer) else None
            return None if answer is None else names_of(answer.authorized_operations)
