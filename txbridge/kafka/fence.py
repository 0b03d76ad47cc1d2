"""The fence of a partition.

The worker that initialised its transactional.id last is the owner. Every earlier one is fenced off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from txbridge.kafka.config import transactional_producer_config
from txbridge.kafka.endtxn_watch import CONTEXT, FENCED_CODES, EndTxnWatch
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import FAIL, is_refused, named, unreachable
from txbridge.kafka.failures import FencedError, TakeOverRefusedError, UnendedTransactionError

#: Short, because the caller tries again when Kafka does not answer (s).
_CONNECT_TIMEOUT_S = 5.0
#: InitProducerId waits until the coordinator has finished the previous owner's transaction. That takes milliseconds, or
#: as long as the coordinator's own recovery after a broker restart.
_INIT_TIMEOUT_S = 30.0
#: flush() sends what is queued at once; until then a batch may fill.
_LINGER_MS = 100
#: The broker, which knows the topic's limit, judges the size of a record; not this client.
_LARGEST_RECORD = 1_000_000_000

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def guarded(call: Callable[_Arguments, _Result], *arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
    """Call a producer's method that serves callbacks.

    When the producer is fenced, confluent-kafka raises the fatal error from within the call, but may run more callbacks
    first. Calls in these callbacks then fail with a SystemError, which hides the fatal error or loses it. The next call
    on the producer, which aborts, fails with a lost error again. Raises KafkaException.
    """
    try:
        return call(*arguments, **keywords)
    except SystemError as error:
        hidden: BaseException | None = error
        while hidden is not None and not isinstance(hidden, KafkaException):
            hidden = hidden.__cause__ or hidden.__context__
        if hidden is None:
            lost = "an error of librdkafka was lost between its callbacks"
            raise KafkaException(KafkaError(FAIL, lost, False, False, True)) from error  # txn_requires_abort
        raise hidden from None


def is_fenced(error: KafkaException) -> bool:
    return error.args[0].code() in FENCED_CODES


def open_fence(
    kafka: Mapping[str, Any],
    transactional_id: str,
    topic: str,
    commit_timeout_ms: int,
    watch: EndTxnWatch,
    outside: Outside = OUTSIDE,
) -> Producer:
    """Take ownership: return a new, initialised producer of this transactional.id.

    Kafka aborts an open transaction of the previous owner, completes one that was being committed, and refuses every
    later request of that owner (KIP-98). Raises FencedError when another worker took the fence meanwhile,
    TakeOverRefusedError for a time-out that the brokers do not accept, UnendedTransactionError when the transaction of
    the previous owner does not end, KafkaException otherwise.

    `topic` is any existing topic. `watch` receives the producer's errors and log lines.
    """
    config = transactional_producer_config(
        kafka, transactional_id=transactional_id, commit_timeout_ms=commit_timeout_ms, max_message_bytes=_LARGEST_RECORD
    )
    config.setdefault("linger.ms", _LINGER_MS)
    config.setdefault("compression.type", "lz4")
    contexts = ",".join(filter(None, [config.get("debug"), CONTEXT]))
    producer = outside.producer({**config, "debug": contexts, "error_cb": watch.on_error, "logger": watch})
    # Without a connection, init_transactions would look for its coordinator again only after half a second. The first
    # answer comes from an address of bootstrap.servers, and librdkafka (2.16) closes that connection then. The second
    # answer comes over a connection that stays open.
    try:
        for _ in range(2):
            producer.list_topics(topic, _CONNECT_TIMEOUT_S)
    except KafkaException:
        producer.poll(0)  # it calls error_cb only in poll()
        if is_refused(watch.cause):
            raise unreachable("take-over", kafka, watch.cause) from None
        raise
    try:
        producer.init_transactions(_INIT_TIMEOUT_S)
    except KafkaException as error:
        if is_fenced(error):
            raise FencedError(f"{transactional_id}: {error.args[0].str()}") from error
        if error.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS:
            raise UnendedTransactionError(
                f"Kafka has not ended the last transaction of {transactional_id} for {_INIT_TIMEOUT_S:.0f} s"
            ) from error
        if error.args[0].code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
            raise TakeOverRefusedError(
                f"commit_timeout is {commit_timeout_ms} ms, and the brokers accept less: set it to at most "
                f"transaction.max.timeout.ms of the brokers, or raise that"
            ) from error
        raise KafkaException(named(error.args[0], "WRITE", f"transactional id {transactional_id}")) from error
    return producer
