"""Names of topics, groups, headers and ids: RocketMQ's own where it has one. docs/protocol.md is the contract."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256

#: Kafka's headers: an ordered list in which a name may repeat and a value may be null.
Headers = Sequence[tuple[str, bytes | None]]

PROTOCOL_VERSION = b"1"

VERSION = "TXB_V"
TRAN_MSG = "TRAN_MSG"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
PGROUP = "PGROUP"
UNIQ_KEY = "UNIQ_KEY"
CHECK_IMMUNITY_TIME = "CHECK_IMMUNITY_TIME_IN_SECONDS"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
MESSAGES = "TXB_MESSAGES"
MESSAGE_NUMBER = "TXB_MESSAGE"
DELIVER_AT = "TXB_DELIVER_AT"
BARRIER = "TXB_BARRIER"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
SOURCE = "SOURCE"
CLIENT_ID = "CLIENT_ID"
TAGS = "TAGS"
OUTCOME = "OUTCOME"
HALF_COORDINATES = "TXB_HALF"
END_POSITION = "TXB_END"
ENDS_APPLIED = "TXB_ENDS"
BORN = "TXB_BORN"
DELIVERED = "TXB_DELIVERED"
REASON = "TXB_REASON"
ERROR = "TXB_ERROR"
REMARK = "TXB_REMARK"
REPLY = "TXB_REPLY"
STATE = "TXB_STATE"
RECORD_SOURCE = "TXB_SOURCE"
#: Of a record that a relay has delivered: the identity of its outbox (8 digits of it) and the number of its batch.
OUTBOX_BATCH = "TXB_OUTBOX"

#: RocketMQ's tag of an OP message: "the half messages named here are finished".
REMOVE_TAG = b"d"

#: Our headers of a half message. Delivered records do not have them (UNIQ_KEY is added again).
HALF_HEADERS = frozenset(
    {
        VERSION,
        TRAN_MSG,
        REAL_TOPIC,
        REAL_QID,
        PGROUP,
        UNIQ_KEY,
        CHECK_IMMUNITY_TIME,
        BORN_TIMESTAMP,
        MESSAGES,
        DELIVER_AT,
        BARRIER,
    }
)

_RESERVED_NAMES = HALF_HEADERS | {CHECK_TIMES, "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET"}
_RESERVED_PREFIX = "TXB_"

_GROUP = re.compile(r"[A-Za-z0-9._-]{1,200}\Z")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")
#: The identity of a barrier table, or the name of a reply.
_SHORT_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_TRANSACTION_ID = re.compile(r"[0-9A-F]{32}\Z")
#: Size of the caches for checked names. Names are checked for every message, and messages share a few.
_KNOWN_NAMES = 1_000
#: RocketMQ's consumer group of the half topic. Here it names the checkpoint, the fence and the workers' group.
SYSTEM_GROUP = "CID_RMQ_SYS_TRANS"
#: Prefix of a check topic, behind the namespace. No real topic may have it in that place.
CHECK_TOPIC = "RMQ_SYS_TRANS_CHECK."
#: Prefix of the internal topics behind their namespace, and whole names.
_INTERNAL_PREFIX = "RMQ_SYS_"
_INTERNAL_NAMES = frozenset({"TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_AUDIT_VIOLATIONS_TOPIC"})
#: RocketMQ's topic for message traces, to which clients may write. txbridge itself has no topic of this name.
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
#: librdkafka demands a group for every reader. No reader joins it or commits offsets to it, in any namespace.
READER_GROUP = "txbridge-reader"


def is_reserved_header(name: str) -> bool:
    """Whether a user's message must not carry this header."""
    return name in _RESERVED_NAMES or name.startswith(_RESERVED_PREFIX)


@lru_cache(_KNOWN_NAMES)
def is_group(name: str) -> bool:
    """Whether this can be a producer group: it becomes part of a topic name."""
    return _GROUP.match(name) is not None


@lru_cache(_KNOWN_NAMES)
def is_topic(name: str) -> bool:
    """Whether Kafka accepts this as a topic name."""
    return _TOPIC.match(name) is not None and name not in {".", ".."}


def topics_of(real_topic: str) -> tuple[str, ...]:
    """The real topics of a transaction. Several are joined by commas in one text, as no topic name has a comma."""
    return _split(real_topic) if "," in real_topic else (real_topic,)


@lru_cache(_KNOWN_NAMES)
def _split(real_topics: str) -> tuple[str, ...]:
    return tuple(real_topics.split(","))


def is_transaction_id(text: str) -> bool:
    """Whether this is a transaction id: 128 bits as 32 upper-case hexadecimal digits."""
    return _TRANSACTION_ID.match(text) is not None


@lru_cache(_KNOWN_NAMES)
def is_barrier_id(text: str) -> bool:
    """Whether this can be the identity of a barrier table. Ours are 64 random bits; another client's may be a name."""
    return _SHORT_NAME.match(text) is not None


def is_reply_name(text: str) -> bool:
    """Whether this can be the name that a client gives to the reply to an END record."""
    return _SHORT_NAME.match(text) is not None


def delivered_id(transaction_id: str) -> str:
    """The id of delivered messages while others of their transaction wait: it is no right to decide these.

    Of the same form as a transaction id.
    """
    return sha256(transaction_id.encode()).hexdigest()[:32].upper()


def short_id(transaction_id: str) -> str:
    """The part of a transaction id that logs may show: the whole id is the right to decide."""
    return transaction_id[:8]


def _prefixed(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if namespace else name


def _in_namespace(name: str) -> cached_property[str]:
    return cached_property(lambda names: _prefixed(names.namespace, name))


@dataclass(frozen=True)
class Names:
    """All names of one namespace (an environment that shares a cluster with others); "" means no prefix."""

    namespace: str = ""

    half = _in_namespace("RMQ_SYS_TRANS_HALF_TOPIC")
    end = _in_namespace("RMQ_SYS_TRANS_END_TOPIC")
    op = _in_namespace("RMQ_SYS_TRANS_OP_HALF_TOPIC")
    offset = _in_namespace("RMQ_SYS_TRANS_OFFSET_TOPIC")
    discard = _in_namespace("TRANS_CHECK_MAX_TIME_TOPIC")
    #: The topic for the findings of an audit that follows the log, unless the user names another one.
    violations = _in_namespace("TRANS_AUDIT_VIOLATIONS_TOPIC")
    #: The topic of the relays' progress. Workers and clients do not use it.
    outbox = _in_namespace("RMQ_SYS_TRANS_OUTBOX_TOPIC")
    #: The consumer group of the workers, unless the option app_id names another one.
    worker_group = _in_namespace(SYSTEM_GROUP)

    @property
    def internal(self) -> tuple[str, ...]:
        """The internal topics, without the check topics."""
        return self.half, self.end, self.op, self.offset, self.discard

    @property
    def identified(self) -> dict[str, str]:
        """The topics whose Kafka ids the checkpoint keeps, by their short names there."""
        return {"half": self.half, "end": self.end, "op": self.op, "offset": self.offset}

    def check(self, group: str) -> str:
        """The topic of a producer group's check requests, and the consumer group that reads it."""
        return _prefixed(self.namespace, f"{CHECK_TOPIC}{group}")

    def transactional_id(self, partition: int, index: int = 0) -> str:
        """The transactional.id that fences a partition.

        It follows from the topics, not from the app: two apps on the same topics must collide.
        """
        return f"{self.half}@{SYSTEM_GROUP}/{partition}/{index}"

    def relay_transactional_id(self, identity: str) -> str:
        """The transactional.id that fences the relays of the outbox with this identity."""
        return f"{self.outbox}@{identity}"

    def checkpoint_key(self, partition: int) -> bytes:
        return f"{self.half}@{SYSTEM_GROUP}/{partition}".encode()

    def parked_key(self, partition: int, half_offset: int) -> bytes:
        return f"{self.half}@{SYSTEM_GROUP}/{partition}/{half_offset}".encode()

    @staticmethod
    @lru_cache(_KNOWN_NAMES)
    def is_forbidden(real_topic: str) -> bool:
        """Whether this is a system topic of any namespace, to which no message may go (RocketMQ's TopicValidator).

        A worker may have the right to write to such a topic. Then anyone who can write to its HALF could forge the
        checkpoint of another environment.
        """
        parts = real_topic.split(".")
        return real_topic != TRACE_TOPIC and (
            real_topic.startswith("__")
            or parts[-1] in _INTERNAL_NAMES
            # The group in the name of a check topic may have dots, too.
            or any(part.startswith(_INTERNAL_PREFIX) for part in parts)
        )
