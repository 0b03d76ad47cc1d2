"""Commands for one open message, and for many after a dry run: commit, rollback, resume and abandon, written to END."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from confluent_kafka import KafkaException, Producer

from txbridge.core.decision_record import MAX_ENTRIES, Decision, DecisionEntry, Source, encode_end, parse_end
from txbridge.core.states import TransactionState
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, TxBridgeError, UsageError
from txbridge.kafka import config as kafka_config
from txbridge.kafka.errors import MSG_TIMED_OUT
from txbridge.kafka.produced_records import store_record
from txbridge.operations.causes import GroupStates, cause_if
from txbridge.operations.connection import Connection, kafka_errors
from txbridge.operations.listing import FinishedError, find_target, with_keys
from txbridge.operations.model import Answer, OpenMessage, Result, Selection
from txbridge.operations.reading import read_views, wait_applied
from txbridge.operations.view import RULES, Action, ActionRule, PartitionView, foretell, outcome_of, refuse
from txbridge.text import counted

#: Wait for the worker (s). A dead worker is noticed after its session (6 s), and the take-over of its partitions takes
#: some more seconds. A healthy worker applies an END record within milliseconds.
DEFAULT_TIMEOUT_S = 30.0

#: Most characters of an operator's name, which is in a header of every record.
_LONGEST_OPERATOR = 200
#: A little longer (s) than message.timeout.ms, after which librdkafka gives a record up and reports that.
_FLUSH_TIMEOUT_S = kafka_config.END_MESSAGE_TIMEOUT_MS / 1000 + 5


def resolve(
    connection: Connection,
    target: str,
    action: Action,
    *,
    reason: str = "",
    operator: str = "",
    id_prefix: str | None = None,
    dry_run: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Answer:
    """Act on one open message by hand, wait until a worker has applied the command, and return the result.

    Commit and rollback decide a pending message: the first decision wins, no matter who made it. Resume makes a
    discarded one pending again, checked from check 1 on (RocketMQ's RESUME_CHECK_HALF_MESSAGE). Abandon gives up a held
    or scheduled one: it is committed, and will not be delivered.

    `target` is `<partition>:<half offset>`, or 8 to 32 characters of the transaction id; `id_prefix` guards against a
    mistyped offset. When the topics already show that the command has no effect, nothing is written. A dry run says
    what would happen, and writes nothing. `timeout_s` bounds the wait for the worker. After it the result is STORED,
    and the command will still be applied.

    Before anything is written it raises UsageError, FinishedError, HangingTransactionError, KafkaUnreachableError and
    EnvironmentProblemError. It raises the last one also when Kafka did not acknowledge the command, and the text says
    so. Later errors are in the answer.
    """
    if not dry_run:
        reason, operator = check_words(reason, operator)
    view, message = find_target(connection, target, id_prefix)
    [message] = _with_losses(connection, action, message.partition, [message])
    if dry_run:
        return foretell(action, message)
    refused = refuse(action, message)
    if refused is not None:
        return refused
    end_offset = write_end(connection, [message], RULES[action], reason, operator)
    [answer] = _await_results(connection, action, view, [message], end_offset, Deadline(timeout_s))
    return answer


def resolve_all(
    connection: Connection,
    action: Action,
    selection: Selection,
    *,
    reason: str = "",
    operator: str = "",
    dry_run: bool = False,
    expected: int | None = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> list[Answer]:
    """Act on all open messages of the selection whose state allows it; its own states and limit are ignored.

    The order is that of partitions and offsets. A dry run lists the messages and writes nothing. `expected` is their
    number in a dry run: FinishedError is raised if it differs now, before anything is written. Other errors are those
    of `resolve`. Errors after the first command was written are in the answers.
    """
    if selection.partition is not None:
        connection.require_partition(selection.partition)
    if not dry_run:
        reason, operator = check_words(reason, operator)
    wanted = replace(selection, states=RULES[action].states)
    now = time.time_ns() // 1_000_000
    problem_of = GroupStates(connection).problem_of
    found = [
        (view, [message for message in view.open_messages() if cause_if(wanted, message, now, problem_of) is not None])
        for view in read_views(connection)
    ]
    if dry_run:
        return [foretell(action, message) for _, messages in found for message in messages]
    number = sum(len(messages) for _, messages in found)
    if expected is not None and number != expected:
        raise FinishedError(
            f"the selection has {counted(number, 'message')}, not {expected:,}: repeat the dry run. Nothing was written"
        )
    # All bodies are looked up before the first command is written.
    work = [(view, _with_losses(connection, action, view.partition, messages)) for view, messages in found]
    deadline = Deadline(timeout_s)
    answers: list[Answer] = []
    written = False
    for view, messages in work:
        refused = {message.half_offset: refuse(action, message) for message in messages}
        answers += [answer for answer in refused.values() if answer is not None]
        for batch in _batches(message for message in messages if refused[message.half_offset] is None):
            try:
                end_offset = write_end(connection, batch, RULES[action], reason, operator)
            except TxBridgeError as error:
                if not written:
                    raise
                answers += [Answer(message, Result.NOT_KNOWN, str(error)) for message in batch]
            else:
                answers += _await_results(connection, action, view, batch, end_offset, deadline)
            written = True
    return sorted(answers, key=lambda answer: (answer.message.partition, answer.message.half_offset))


def _with_losses(
    connection: Connection, action: Action, partition: int, messages: Sequence[OpenMessage]
) -> list[OpenMessage]:
    """The same messages of one partition; before a commit, which needs the bodies, also whether these are gone.

    Raises as `read_view`.
    """
    pending = [message for message in messages if message.state is TransactionState.PENDING]
    if action is not Action.COMMIT or not pending:
        return [*messages]
    # The keys must not be kept longer than they are needed.
    looked_up = {one.half_offset: replace(one, key=None) for one in with_keys(connection, partition, pending)}
    return [looked_up.get(message.half_offset, message) for message in messages]


def _batches(messages: Iterable[OpenMessage]) -> Iterable[list[OpenMessage]]:
    """Batches of one group each, with as many messages as an END record may hold; their order stays."""
    groups: dict[str, list[OpenMessage]] = defaultdict(list)
    for message in messages:
        groups[message.group].append(message)
    for found in groups.values():
        for start in range(0, len(found), MAX_ENTRIES):
            yield found[start : start + MAX_ENTRIES]


def _await_results(
    connection: Connection,
    action: Action,
    view: PartitionView,
    batch: Sequence[OpenMessage],
    end_offset: int,
    deadline: Deadline,
) -> list[Answer]:
    """Wait until the worker has applied the END record about these messages, and return the result of each.

    It raises nothing: the record is stored, and that must not look like a failure.
    """
    seconds, stored = deadline.left, f"stored at END offset {end_offset} of partition {view.partition}"
    try:
        applied = wait_applied(connection, view, end_offset, [message.half_offset for message in batch], deadline)
    except TxBridgeError as error:
        detail = f"{stored}, but its result could not be read: {error}. Do not repeat it: look with `txbridge pending`"
    else:
        if applied is not None:
            return [
                outcome_of(
                    action,
                    message,
                    end_offset,
                    applied.commands[message.half_offset],
                    applied.outcomes[message.half_offset],
                    view.offset_topic.parked.get(message.half_offset),
                )
                for message in batch
            ]
        late = (
            f"{stored}, but no worker applied it within {round(seconds, 1):g} s: none is running, or none serves this "
            "partition. Do not repeat it: it takes effect as soon as one does"
        )
        # The view's warnings may be the reason.
        detail = ". ".join([late, *view.warnings])
    return [Answer(message, Result.STORED, detail, end_offset) for message in batch]


def check_words(reason: str, operator: str) -> tuple[str, str]:
    """Return reason and operator without surrounding blanks. Raises UsageError when they cannot be recorded."""
    reason, operator = reason.strip(), operator.strip()
    if not reason:
        raise UsageError("a reason is needed: it is recorded with the decision (--reason)")
    if not operator:
        raise UsageError("an operator is needed: the name is recorded with the decision (--operator)")
    if len(operator) > _LONGEST_OPERATOR:
        raise UsageError(f"the operator's name is longer than {_LONGEST_OPERATOR} characters")
    # The encoding cuts long remarks of exceptions; a person's reason must be recorded in full.
    sample = DecisionEntry(0, "0" * 32, Decision.UNKNOWN, None, reason)
    value, headers = encode_end([sample], "group", Source.OPERATOR, None)
    if parse_end(0, value, headers).entries[0].remark != reason:
        raise UsageError("the reason is too long, or not text: at most 2,048 characters, percent-encoded as UTF-8")
    return reason, operator


def write_end(
    connection: Connection, messages: Sequence[OpenMessage], rule: ActionRule, reason: str, operator: str
) -> int:
    """Write one END record about these messages of one partition and group; returns its offset.

    The operator is its CLIENT_ID, the reason the remark of each entry (docs/protocol.md).
    Raises EnvironmentProblemError when Kafka has not acknowledged it, KafkaUnreachableError.
    """
    partition, group = messages[0].partition, messages[0].group
    entries = [DecisionEntry(one.half_offset, one.transaction_id, rule.decision, None, reason) for one in messages]
    value, headers = encode_end(entries, group, rule.source, operator)
    topic = connection.names.end
    producer = kafka_config.create(Producer, kafka_config.end_producer_config(connection.kafka))
    with kafka_errors(f"writing to {topic}[{partition}]"):
        try:
            return store_record(producer, topic, value, partition, headers, _FLUSH_TIMEOUT_S)
        except KafkaException as failure:
            error = failure.args[0]
            if error.code() != MSG_TIMED_OUT:
                raise
            raise EnvironmentProblemError(
                f"Kafka did not acknowledge the command in {topic}[{partition}] ({error.str()}). It may be stored: "
                f"check with `txbridge pending` before you repeat it"
            ) from failure
