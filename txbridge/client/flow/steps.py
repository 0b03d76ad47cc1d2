"""The steps of an attempt that all faces share: refuse, prepare, run the local transaction, end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txbridge.client.errors import PrepareError
from txbridge.client.listener import TransactionListener, execute, execution_failed
from txbridge.client.message import Message, MessageExt, check_message
from txbridge.client.result import TransactionSendResult
from txbridge.core.names import Names
from txbridge.deadline import Deadline
from txbridge.errors import UsageError

if TYPE_CHECKING:
    from txbridge.client.prepare.half_writer import AfterReports, HalfWriter, Prepared, Report
    from txbridge.client.runtime import Runtime


def refuse(message: Message, names: Names) -> None:
    """UsageError for what no cluster could take: it does not even start a client."""
    if not isinstance(message, Message):
        raise UsageError(f"a Message is needed, not {type(message).__name__}")
    check_message(message, names)


def admit(runtime: Runtime, message: Message) -> str:
    """The id of a new transaction; UsageError if this client can not send the message."""
    require_this_process(runtime)
    runtime.check_limits(message)
    return runtime.new_transaction_id()


def require_this_process(runtime: Runtime) -> None:
    """UsageError after a fork."""
    if not runtime.is_of_this_process:
        raise UsageError("this producer was started before a fork; create one in the child")


def prepare(runtime: Runtime, message: Message, transaction_id: str) -> Prepared:
    """Store the half message and wait for that; PrepareError if Kafka does not acknowledge it."""
    try:
        writer = runtime.half_writer()
        with writer.waiter() as waiter:
            write(runtime, writer, message, transaction_id, waiter.report)
            # Every record is reported, at the latest when its time is over.
            prepared = waiter.result()
    except BaseException:
        # Interrupted: Kafka may store it, but there will be no local transaction.
        runtime.give_up(transaction_id)
        raise
    if isinstance(prepared, PrepareError):
        runtime.give_up(transaction_id)
        raise prepared
    return prepared


def write(
    runtime: Runtime,
    writer: HalfWriter,
    message: Message,
    transaction_id: str,
    on_done: Report,
    after_reports: AfterReports | None = None,
) -> None:
    """Hand the half message over; blocks for room, as long as for an acknowledgement, then PrepareError."""
    deadline = Deadline(runtime.prepare_timeout)
    if not runtime.wait_for_room(runtime.prepare_timeout):
        raise no_room_for_ends()
    while True:
        try:
            runtime.write_half(writer, message, transaction_id, on_done, deadline, after_reports)
        except BufferError:
            if deadline.is_over:
                raise no_room_for_half_messages() from None
            writer.wait_for_room(deadline.left)
        else:
            return


def no_room_for_ends() -> PrepareError:
    """Waited in vain for decisions to be acknowledged."""
    return PrepareError(
        "too many decisions wait for Kafka's acknowledgement, so no new transaction was begun; check the brokers "
        "of the END topic, then send again",
    )


def no_room_for_half_messages() -> PrepareError:
    """Waited in vain for half messages to be acknowledged."""
    return PrepareError(
        "librdkafka's queue stayed full (queue.buffering.max.messages, .kbytes), so no new transaction was "
        "begun; check the brokers, then send again",
    )


def extended(message: Message, prepared: Prepared) -> MessageExt:
    """What the listener gets."""
    return MessageExt.prepared(message, prepared.transaction_id, prepared.partition, prepared.offset, prepared.born)


def decide(
    runtime: Runtime, listener: TransactionListener, message: Message, prepared: Prepared, arg: Any
) -> TransactionSendResult:
    """Run the local transaction in this thread and send its decision on the way."""
    given = extended(message, prepared)
    try:
        outcome = execute(listener, given, arg)
    except BaseException as error:
        interrupted(runtime, prepared, given, error)
        raise
    end = runtime.end(prepared, outcome)
    return TransactionSendResult.of(prepared, outcome, end)


def interrupted(runtime: Runtime, prepared: Prepared, given: MessageExt, error: BaseException) -> None:
    """KeyboardInterrupt, SystemExit and the like are on their way out, but the worker learns that nothing is known."""
    runtime.end(prepared, execution_failed(given, error))
