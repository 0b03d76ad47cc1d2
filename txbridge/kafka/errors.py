"""Failures between a worker and Kafka, by the reaction that each one needs, and librdkafka's error codes.

The codes have public names, where confluent-kafka has an underscore, and say what to do; also if another cluster is
reached, which stands for none.
"""
# ruff: noqa: SLF001

from __future__ import annotations

import contextlib
import math
import re
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from txbridge.errors import KafkaUnreachableError, TxBridgeError
from txbridge.masking import masked


class FencedError(TxBridgeError):
    """Another worker has taken the partition: this one must stop at once."""


class IndefiniteError(TxBridgeError):
    """It is unknown whether Kafka has committed. Read the topics to learn it, after taking the fence again."""


class TakeOverRefusedError(TxBridgeError):
    """Topics or options with which going on could lose or duplicate messages. Only a person can correct them."""


class LogGoneError(TxBridgeError):
    """The log was cut, recreated or emptied below the position of a reader."""


class UnansweredError(TxBridgeError):
    """Kafka has not answered a question. It can be asked again: nothing was decided or written."""


class HangingTransactionError(TxBridgeError):
    """A Kafka transaction was left open in an internal topic and hides the records behind it."""


class UnendedTransactionError(HangingTransactionError):
    """Kafka cannot end the partition's last transaction, so that there can be no other one."""


class ReadStoppedError(TxBridgeError):
    """The owner was asked to stop while it waited for Kafka."""


class AbortedError(TxBridgeError):
    """The Kafka transaction was aborted and nothing of it is visible; it can be tried again."""


class OutdatedError(TxBridgeError):
    """OFFSET goes beyond the end that was reported, or OFFSET or OP has lost records. Nothing was written.

    The state in memory differs from the topics, so they have to be read again.
    """


class RecordKind(Enum):
    """The purpose of a record in the Kafka transaction that writes it."""

    #: A user's message for its real topic.
    REAL = auto()
    #: A check request for a producer group.
    CHECK = auto()
    #: The reply to an END record. It is left out where Kafka does not take it.
    REPLY = auto()
    #: A discarded or malformed record.
    DISCARD = auto()
    #: OP, parked entries, checkpoint: without them nothing can be committed.
    INTERNAL = auto()


#: The name of a record: a half offset, or topic and offset of a malformed one. None for a record of OP or OFFSET, and
#: for records that had no reports of their own.
RecordName = int | tuple[str, int] | None


@dataclass(frozen=True, slots=True)
class RecordFailure:
    """A record that Kafka did not take."""

    kind: RecordKind
    topic: str
    which: RecordName
    reason: str
    #: Whether the topic takes no record at all now: it does not answer, is gone, or is forbidden.
    whole_topic: bool
    #: Whether this very record is at fault. Kafka refuses a whole batch for one bad record.
    is_culprit: bool
    #: Whether its size is the reason, so that larger records need not be tried.
    too_large: bool = False
    #: Whether no answer came in time; the connection may be the cause as well as the topic.
    timed_out: bool = False
    #: Whether other records of the same transaction were taken by its topic.
    in_part: bool = False


class RecordsRefusedError(TxBridgeError):
    """The Kafka transaction was aborted because Kafka did not take some of its records."""

    def __init__(self, failures: list[RecordFailure]) -> None:
        self.failures = failures
        first = failures[0]
        super().__init__(f"{len(failures)} record(s) were not taken, the first for {first.topic}: {first.reason}")


ALL_BROKERS_DOWN = KafkaError._ALL_BROKERS_DOWN
AUTHENTICATION = KafkaError._AUTHENTICATION
AUTO_OFFSET_RESET = KafkaError._AUTO_OFFSET_RESET
FAIL = KafkaError._FAIL
FATAL = KafkaError._FATAL
FENCED = KafkaError._FENCED
INVALID_DIFFERENT_RECORD = KafkaError._INVALID_DIFFERENT_RECORD
LOG_TRUNCATION = KafkaError._LOG_TRUNCATION
MAX_POLL_EXCEEDED = KafkaError._MAX_POLL_EXCEEDED
MSG_TIMED_OUT = KafkaError._MSG_TIMED_OUT
PARTITION_EOF = KafkaError._PARTITION_EOF
PURGE_INFLIGHT = KafkaError._PURGE_INFLIGHT
PURGE_QUEUE = KafkaError._PURGE_QUEUE
QUEUE_FULL = KafkaError._QUEUE_FULL
RESOLVE = KafkaError._RESOLVE
SSL = KafkaError._SSL
STATE = KafkaError._STATE
TIMED_OUT = KafkaError._TIMED_OUT
TRANSPORT = KafkaError._TRANSPORT
UNKNOWN_PARTITION = KafkaError._UNKNOWN_PARTITION
UNKNOWN_TOPIC = KafkaError._UNKNOWN_TOPIC

# The meanings of codes that our parts act on. A code may have several; what has none is an error of its own.
_GROUP_DENIED, _FENCE_DENIED = KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
_TOPIC_DENIED, _CLUSTER_DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED
#: This user lacks a right.
DENIED = frozenset({_TOPIC_DENIED, _GROUP_DENIED, _CLUSTER_DENIED, _FENCE_DENIED})
#: There is no such topic.
MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, UNKNOWN_TOPIC})
#: A partition has no leader for a moment when it is new or its broker restarts.
NO_LEADER = frozenset({KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, UNKNOWN_PARTITION})
NO_LEADER |= {KafkaError.UNKNOWN_TOPIC_OR_PART}
#: A group's coordinator is being created, elected or loaded.
COORDINATOR_COMES = frozenset({KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.COORDINATOR_LOAD_IN_PROGRESS})
COORDINATOR_COMES |= {KafkaError.NOT_COORDINATOR}
#: Answers that are about a group itself: another client would get the same.
ABOUT_THE_GROUP = DENIED | {KafkaError.GROUP_ID_NOT_FOUND, KafkaError.INVALID_GROUP_ID}
#: librdkafka cannot unpack a batch of records, or read what is in it. It gives up at receive.message.max.bytes, 100 MB.
UNREADABLE = frozenset({KafkaError._BAD_COMPRESSION, KafkaError._BAD_MSG})
#: A broker does not have the position of a reader.
OUT_OF_RANGE = frozenset({AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
#: TLS or SASL, or the endpoint of its tokens, refuses the connection.
REFUSED = frozenset({AUTHENTICATION, SSL})
#: Kafka did not answer: trying again later may help.
UNREACHABLE = REFUSED | {TIMED_OUT, TRANSPORT, ALL_BROKERS_DOWN, RESOLVE}
UNREACHABLE |= {KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER}
#: The topic takes no records now.
WHOLE_TOPIC = MISSING | {MSG_TIMED_OUT, _TOPIC_DENIED}
#: It stays until somebody changes a topic, a right or the message.
LASTING = MISSING | {KafkaError.MSG_SIZE_TOO_LARGE, _TOPIC_DENIED, _CLUSTER_DENIED, UNKNOWN_PARTITION}
#: Another producer owns this transactional.id now.
FENCED_CODES = frozenset({FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
FENCED_CODES |= {KafkaError.INVALID_PRODUCER_ID_MAPPING}
#: It follows from another error of the same transaction, or concerns the producer and not the record.
CONSEQUENCES = FENCED_CODES | {PURGE_QUEUE, PURGE_INFLIGHT, STATE, FATAL, INVALID_DIFFERENT_RECORD}
CONSEQUENCES |= {KafkaError.INVALID_TXN_STATE, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER}
CONSEQUENCES |= {KafkaError.UNKNOWN_PRODUCER_ID, KafkaError.CONCURRENT_TRANSACTIONS}

_CONNECTION = "check the brokers and the network, then send again"
_TOO_FEW = "too few replicas are in sync (min.insync.replicas): bring the brokers back"
#: What to do about the error of a record.
_OF_RECORDS = {
    **dict.fromkeys({MSG_TIMED_OUT, TIMED_OUT, TRANSPORT, ALL_BROKERS_DOWN}, _CONNECTION),
    KafkaError.REQUEST_TIMED_OUT: _CONNECTION,
    KafkaError.NOT_ENOUGH_REPLICAS: _TOO_FEW,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: _TOO_FEW,
    KafkaError.MSG_SIZE_TOO_LARGE: "send a smaller message or raise max.message.bytes of the half topic",
    _TOPIC_DENIED: "grant this user WRITE and DESCRIBE on the topic",
    _CLUSTER_DENIED: "grant this user IDEMPOTENT_WRITE on the cluster",
    **dict.fromkeys(MISSING, "the topic does not exist; `txbridge topics apply` creates it"),
    UNKNOWN_PARTITION: "the topic has changed; restart this process",
    **dict.fromkeys({PURGE_QUEUE, PURGE_INFLIGHT}, "the producer was closed meanwhile"),
    FATAL: "the client connects again; send again",
}
#: Patterns of librdkafka's texts, which differ by chance for one cause, and what to do. The first that is found counts.
_REMEDIES = (
    ("Connection refused", "nothing listens there: check the port, and whether Kafka runs"),
    (
        "Failed to resolve",
        "check the name; if it is not in bootstrap.servers, a broker has it in its advertised.listeners",
    ),
    (
        "Disconnected.*in state SSL_HANDSHAKE",
        "this port has no TLS, or a proxy has no broker behind it: check the port, and security.protocol",
    ),
    (
        "certificate",
        "the broker's certificate has expired, is not for this address, or is of an authority not in ssl.ca.location",
    ),
    ("mechanism handshake failed", "sasl.mechanism or security.protocol does not fit this port"),
    ("SASL", "check sasl.username and sasl.password"),
    ("Receive failed", "what listens at this port is no Kafka: check the port"),
)
#: librdkafka has got no token, or has one that the broker does not take (any more).
_NO_TOKEN = re.compile("OAUTHBEARER token|invalid_token")
#: A broker's answer to the client's certificate. In TLS 1.3 it follows the handshake, and looks like a lost connection.
_ALERT = re.compile("alert (bad certificate|certificate|unknown ca)")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
#: The two times of a certificate's validity in DER, each with its type and length: the years have two digits or four.
_VALIDITY = re.compile(rb"(?:\x17\x0d|\x18\x0f)\d{10,14}Z(?:\x17\x0d|\x18\x0f)(\d{10,14}Z)")
#: What librdkafka adds to an error: for how long it has tried, and in which state.
_HOW_LONG = re.compile(r"(/bootstrap)?(: .*?) \(after .*\)$", re.DOTALL)


def unreadable_batch(error: KafkaError, topic: str, partition: int) -> TakeOverRefusedError:
    """What a person has to know who is to pass such a batch. librdkafka's text names its offset."""
    return TakeOverRefusedError(
        f"{topic}[{partition}] has records that nobody can read ({error.str()}): they are damaged, or unpack to more "
        "than 100 MB. How to pass them: docs/runbook.md#a-batch-that-nobody-can-read"
    )


def is_missing_topic(error: BaseException | None) -> bool:
    """Whether this is the answer that there is no such topic."""
    return isinstance(error, KafkaException) and error.args[0].code() in MISSING


def is_refused(error: KafkaError | None) -> bool:
    """Whether a connection is refused by TLS or SASL: nothing that passes."""
    return error is not None and (error.code() in REFUSED or _ALERT.search(error.str()) is not None)


def is_denied(error: KafkaError) -> bool:
    return error.code() in DENIED


def explain(error: KafkaError) -> str:
    """The text of the error of a record, with what to do about it."""
    remedy = _OF_RECORDS.get(error.code(), "see Kafka's description of this error")
    return f"{error.str()} ({error.name()}); {remedy}"


def missing_right(right: str, resource: str) -> str:
    """The text about a missing right; `resource` as in "topic orders"."""
    return f"missing right {right} on {resource}: grant it to the user of this connection (docs/security.md)"


def named(error: KafkaError, right: str, resource: str) -> KafkaError:
    """The same error with a text that names the missing right, which Kafka does not; any other one unchanged."""
    return KafkaError(error.code(), missing_right(right, resource)) if is_denied(error) else error


def unreachable(purpose: str, user: Mapping[str, Any], cause: KafkaError | None) -> KafkaUnreachableError:
    """The error of a request that no broker has answered.

    `cause` is the last error of the connection. `user` are the settings of the connection, empty if they are not known.
    """
    servers = str(user.get("bootstrap.servers", ""))
    where = f" at {servers}" if servers else ""
    text, remedy = explain_cause(cause, user)
    return KafkaUnreachableError(f"Kafka cannot be reached{where} ({purpose}): {text}; {remedy}", servers, cause)


def note_cause(last: KafkaError | None, error: KafkaError) -> KafkaError:
    """The cause after one more error of the connection. That all brokers are down follows each of the others."""
    return error if last is None or error.code() != ALL_BROKERS_DOWN else last


def other_cluster(expected: str, found: str) -> str:
    """Why a cluster is refused that is not that of the program's start; empty if it is, or if none is expected."""
    if expected in ("", found):
        return ""
    return (
        f"another Kafka cluster answers at the same address: {found}, not {expected} as at the start. Nothing is sent "
        "to it or served there. Check the address, or, if the move is meant, restart this process"
    )


def token_remedy(user: Mapping[str, Any]) -> str:
    """What to do about an endpoint that gives no token."""
    url = masked(str(user.get("sasl.oauthbearer.token.endpoint.url", "sasl.oauthbearer.token.endpoint.url")))
    return f"check the token endpoint {url}, the client id and secret of sasl.oauthbearer, and https.ca.location"


def expires_at(text: str) -> float:
    """Until then (s since 1970) all certificates in this text are valid."""
    ders = map(ssl.PEM_cert_to_DER_cert, _PEM.findall(text))
    ends = [found[1].decode() for der in ders if (found := _VALIDITY.search(der))]
    times = (datetime.strptime(end, f"%{'Y' if len(end) == 15 else 'y'}%m%d%H%M%S%z").timestamp() for end in ends)
    return min(times, default=math.inf)


def refused_certificate(user: Mapping[str, Any]) -> str:
    """What to do when brokers refuse the certificate of a client with these settings: their answer does not say why."""
    text, file = user.get("ssl.certificate.pem"), user.get("ssl.certificate.location")
    if not (text or file or user.get("ssl.keystore.location")):
        return "brokers want a certificate of this client: set ssl.certificate.location and ssl.key.location"
    with contextlib.suppress(OSError):
        if expires_at(text or Path(file or "").read_text(errors="replace")) < time.time():
            return f"this client's certificate has expired: renew {file or 'it'}, and restart this process"
    return "brokers refuse this client's certificate: restart if the file is new; is its authority in their truststore?"


def explain_cause(cause: KafkaError | None, user: Mapping[str, Any]) -> tuple[str, str]:
    """The text of a connection's last error, and what to do about it."""
    protocol = str(user.get("security.protocol", "plaintext")).lower()
    if cause is not None and cause.code() == ALL_BROKERS_DOWN:
        # librdkafka reports no error of a connection that was made and then closed.
        return (
            "every connection is closed at once",
            f"security.protocol={protocol} may not fit this port, or a proxy has no broker behind it",
        )
    full = "no answer" if cause is None else cause.str()
    if _NO_TOKEN.search(full):
        return _HOW_LONG.sub(r"\2", full), token_remedy(user)
    if _ALERT.search(full):
        return _HOW_LONG.sub(r"\2", full), refused_certificate(user)
    remedies = (remedy for pattern, remedy in _REMEDIES if re.search(pattern, full, re.DOTALL))
    return _HOW_LONG.sub(r"\2", full), next(remedies, "check the address, and whether Kafka runs")
