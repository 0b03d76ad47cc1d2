"""The fence of a partition, and its producer: Kafka transactions whose outcome is known, or must be looked up.

The worker that initialised its transactional.id last is the owner. Every earlier one is fenced off.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

from confluent_kafka import KafkaError, KafkaException, Producer

from txbridge.failpoints import fault_point
from txbridge.kafka.config import librdkafka_logger, transactional_producer_config
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import (
    FAIL,
    FATAL,
    FENCED_CODES,
    STATE,
    AbortedError,
    FencedError,
    IndefiniteError,
    RecordsRefusedError,
    TakeOverRefusedError,
    UnendedTransactionError,
    is_refused,
    named,
    note_cause,
    unreachable,
)
from txbridge.kafka.record_failures import Reports

#: librdkafka's debug context that this watch needs.
CONTEXT = "eos"

#: Texts of librdkafka's lines about a fenced producer: another worker has taken over. That happens at every rebalance,
#: and the owner of the partition reports it itself. librdkafka logs one fence as up to three errors and alerts.
_FENCED_WORDS = tuple(KafkaError(code).str().partition(": ")[2] for code in FENCED_CODES)

_FACILITY = "ENDTXN"
_RETURNED = re.compile(r"EndTxn returned (\w+) in state")
_SUCCESS = "NO_ERROR"
#: librdkafka's lines about AddPartitionsToTxn: a request is sent, or an answer is not success.
_REGISTRATION = "ADDPARTS"
_REGISTERING = "Registering partitions with transaction"
_ANSWERED = "AddPartitionsToTxn response: partition "
_CONCURRENT = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS).str()


class Registrations(NamedTuple):
    """Numbers of AddPartitionsToTxn requests of Kafka transactions."""

    sent: int
    #: Answered with CONCURRENT_TRANSACTIONS: markers of the previous transaction were still being written. librdkafka
    #: sends the request again after 20 ms.
    concurrent: int


class EndTxnWatch:
    """A watch for requests to end a Kafka transaction that librdkafka may have sent twice.

    librdkafka re-sends EndTxn by itself after a broken connection. It uses transaction protocol V1, in which a late
    copy of the request can end the next transaction of the same producer (KAFKA-17754), and commit half of it. But for
    librdkafka a connection that breaks during EndTxn is no error: it calls no callback, and the commit succeeds. Only
    its debug lines of the context `eos`, about 30 for a transaction, show the result of EndTxn.

    The same lines show how often librdkafka has registered partitions with a transaction, and how often Kafka was not
    ready for it. A small transaction spends most of its waiting time there, and no other source has these numbers.

    Give `on_error` as a producer's `error_cb` and the watch itself as its `logger`; both are called in poll().
    """

    def __init__(self, forward: logging.Logger, *, forward_debug: bool) -> None:
        self._forward = forward
        self._forward_debug = forward_debug
        self._ended = False
        self._sent = self._concurrent = 0
        #: The first thing that went wrong since the last `forget_trouble`.
        self.trouble: str | None = None
        #: The last error of the connection.
        self.cause: KafkaError | None = None

    def forget_trouble(self) -> None:
        self._ended, self.trouble = False, None

    def trouble_of_commit(self) -> str | None:
        """The reason to doubt that the last transaction was ended only once; None without one."""
        if self.trouble is None and not self._ended:
            # This librdkafka may use other log texts. A slow worker is noticed; a torn transaction is not.
            return "librdkafka did not say how EndTxn went"
        return self.trouble

    def take_registrations(self) -> Registrations:
        """The numbers since the last call."""
        found = Registrations(self._sent, self._concurrent)
        self._sent = self._concurrent = 0
        return found

    def on_error(self, error: KafkaError) -> None:
        self.trouble = self.trouble or error.str()
        self.cause = note_cause(self.cause, error)

    def log(self, level: int, text: str, facility: str, client: str, line: str) -> None:
        """Take one log line of librdkafka."""
        if facility == _FACILITY and (found := _RETURNED.search(line)):
            if found[1] == _SUCCESS:
                self._ended = True
            else:
                self.trouble = self.trouble or f"EndTxn returned {found[1]}"
        elif facility == _REGISTRATION:
            if _REGISTERING in line:
                self._sent += 1
            elif _ANSWERED in line and line.endswith(_CONCURRENT):
                self._concurrent += 1
        if level > logging.INFO and any(words in line for words in _FENCED_WORDS):
            level = logging.INFO
        if level > logging.DEBUG or self._forward_debug:
            self._forward.log(level, text, facility, client, line)


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


#: Errors of a call after an earlier error of the same transaction. Aborting reveals that error.
_FAILED_BEFORE = frozenset({STATE, FATAL})


class TransactionFailedError(Exception):
    """The Kafka transaction can only be aborted; its reports say why."""


class FencedProducer:
    """Owns the producer of a transactional.id; `topic` is any existing topic. Not thread-safe."""

    def __init__(
        self,
        kafka: Mapping[str, Any],
        transactional_id: str,
        topic: str,
        commit_timeout_ms: int,
        outside: Outside = OUTSIDE,
    ) -> None:
        self._kafka = kafka
        self._transactional_id = transactional_id
        self._topic = topic
        self._commit_timeout_ms = commit_timeout_ms
        self._outside = outside
        # The requests around the records of a transaction have the transaction's own time-out.
        self._timeout_s = commit_timeout_ms / 1000
        self._watch = EndTxnWatch(librdkafka_logger(), forward_debug=bool(kafka.get("debug")))
        #: Requests to register partitions since the last call, as far as librdkafka has logged them.
        self.take_registrations = self._watch.take_registrations
        self._producer: Producer | None = None

    def take_fence(self) -> None:
        """Take the fence, for the first time or again. The previous holder can write no more.

        Raises FencedError, TakeOverRefusedError, UnendedTransactionError, KafkaException.
        """
        self._producer = None
        self._producer = open_fence(
            self._kafka, self._transactional_id, self._topic, self._commit_timeout_ms, self._watch, self._outside
        )

    @property
    def must_fence(self) -> bool:
        """Whether the fence has to be taken again before the next transaction."""
        return self._producer is None

    def commit_records(self, fill: Callable[[Producer], None], reports: Reports) -> None:
        """Commit a Kafka transaction of the records that `fill` produces and flushes; their reports go to `reports`.

        `fill` raises TransactionFailedError, or KafkaException, if the transaction can only be aborted.

        Raises:
            RecordsRefusedError: aborted, because Kafka did not take some records.
            AbortedError: aborted for another reason; nothing is visible.
            FencedError: another owner has the fence.
            IndefiniteError: the outcome can only be learnt from the topics.

        """
        producer = self._producer
        assert producer is not None
        try:
            fault_point("commit.before_begin")
            guarded(producer.poll, 0)
            self._watch.forget_trouble()
            producer.begin_transaction()
            fault_point("commit.begun")
            fill(producer)
            fault_point("commit.flushed")
            guarded(producer.commit_transaction, self._timeout_s)
            fault_point("commit.committed")
            guarded(producer.poll, 0)
        except TransactionFailedError as error:
            cause = error.__cause__
            self._abort_transaction(producer, reports, cause if isinstance(cause, KafkaException) else None)
        except KafkaException as error:
            self._abort_transaction(producer, reports, error)
        trouble = self._watch.trouble_of_commit()
        if trouble is not None:
            # A late copy of EndTxn can end the next transaction, unless the next one is of a new epoch.
            raise IndefiniteError(f"connection trouble during a commit: {trouble}")

    def _abort_transaction(self, producer: Producer, reports: Reports, error: KafkaException | None) -> NoReturn:
        """Abort the transaction, and raise the error that names the outcome."""
        kafka_error = None if error is None else error.args[0]
        if error is not None and kafka_error is not None:
            if kafka_error.code() in FENCED_CODES:
                raise FencedError(kafka_error.str()) from error
            if not kafka_error.txn_requires_abort() and kafka_error.code() not in _FAILED_BEFORE:
                raise IndefiniteError(kafka_error.str()) from error
        try:
            guarded(producer.abort_transaction, self._timeout_s)
            # Reports of records that were still queued come with the abort.
            guarded(producer.poll, 0)
        except KafkaException as abort_error:
            if is_fenced(abort_error):
                raise FencedError(abort_error.args[0].str()) from abort_error
            raise IndefiniteError(abort_error.args[0].str()) from abort_error
        # The records and markers of this transaction may have landed where the owner's topics had lost records, and
        # hide the loss. So the owner looks at these again, behind a new fence. It needs a new producer after connection
        # trouble, too: a late copy of this abort could divide the next transaction. And after a refused batch
        # librdkafka goes on with sequence numbers that the broker has not seen.
        self._producer = None
        failures = reports.failures
        if failures:
            raise RecordsRefusedError(failures) from error
        raise AbortedError(
            kafka_error.str() if kafka_error is not None else "Kafka or librdkafka did not take all records of it"
        ) from error
