"""Findings about the rights of the user of this connection, as Kafka itself reports them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from txbridge.doctor.cluster_view import NOBODY, ClusterView
from txbridge.doctor.finding import Check, Finding, ok, problem, unknown
from txbridge.kafka.acl import Pattern, ResourceKind, Right, list_rights, topic
from txbridge.kafka.admin import REQUEST_TIMEOUT_S, TopicRequest
from txbridge.kafka.config import BATCH_BYTES, create, transactional_producer_config

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
            return (frozenset() if name in view.seen else None) if described is None else described.operations
        case _:
            answer = groups.get(name)
            if isinstance(answer, KafkaError):
                return frozenset() if answer.code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None
            return None if answer is None else frozenset(one.name for one in answer.authorized_operations or ())
