"""Notices that a request to end a Kafka transaction may have been sent twice.

librdkafka re-sends EndTxn by itself after a broken connection, and with transaction protocol V1, which it speaks, a
copy that arrives late can end the next transaction of the same producer (KAFKA-17754): half of it would be committed.
A connection that breaks under EndTxn is no error to librdkafka, though: no callback tells, and the commit succeeds.
Only its debug lines of the context `eos`, about 30 for a transaction, tell what EndTxn returned.

The same lines tell how often it has registered partitions with a transaction, and how often Kafka was not ready for it:
that is most of what a small transaction waits for, and nothing else tells.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from confluent_kafka import KafkaError

from txbridge.kafka.errors import FENCED

#: The debug context that must be switched on for this.
CONTEXT = "eos"

#: Errors that say: somebody else owns this transactional.id now.
FENCED_CODES = frozenset(
    {
        FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    },
)
#: librdkafka's line about an error after which a producer is of no use any more, which it logs as an emergency.
_FATAL = "FATAL"
#: What such a line says of a fence: another worker has taken over, which is what happens at every rebalance, and which
#: the owner of the partition reports itself.
_FENCED_WORDS = tuple(KafkaError(code).str().partition(": ")[2] for code in FENCED_CODES)

_FACILITY = "ENDTXN"
_RETURNED = re.compile(r"EndTxn returned (\w+) in state")
_SUCCESS = "NO_ERROR"
#: librdkafka's lines about AddPartitionsToTxn: that it sends one, and what was answered instead of success.
_REGISTRATION = "ADDPARTS"
_REGISTERING = "Registering partitions with transaction"
_ANSWERED = "AddPartitionsToTxn response: partition "
_CONCURRENT = KafkaError(KafkaError.CONCURRENT_TRANSACTIONS).str()


class Registrations(NamedTuple):
    """AddPartitionsToTxn requests of Kafka transactions."""

    sent: int
    #: Answered with CONCURRENT_TRANSACTIONS: markers of the transaction before were still being written. librdkafka
    #: sends it again after 20 ms.
    concurrent: int


class EndTxnWatch:
    """Give `on_error` as a producer's `error_cb` and the watch itself as its `logger`; both are called in poll()."""

    def __init__(self, forward: logging.Logger, *, forward_debug: bool) -> None:
        self._forward = forward
        self._forward_debug = forward_debug
        self._ended = False
        self._sent = self._concurrent = 0
        #: The first thing that went wrong since the last `clear`.
        self.trouble: str | None = None

    def clear(self) -> None:
        self._ended, self.trouble = False, None

    def trouble_of_commit(self) -> str | None:
        """Why the transaction that was committed since `clear` cannot be believed to have ended only once."""
        if self.trouble is None and not self._ended:
            # Better slow and noticed than torn: a librdkafka that says it in other words.
            return "librdkafka did not say how EndTxn went"
        return self.trouble

    def registrations(self) -> Registrations:
        """Since this was asked last."""
        found = Registrations(self._sent, self._concurrent)
        self._sent = self._concurrent = 0
        return found

    def on_error(self, error: KafkaError) -> None:
        self.trouble = self.trouble or error.str()

    def log(self, level: int, text: str, facility: str, client: str, line: str) -> None:
        """One line of librdkafka's."""
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
        if facility == _FATAL and any(words in line for words in _FENCED_WORDS):
            level = logging.INFO
        if level > logging.DEBUG or self._forward_debug:
            self._forward.log(level, text, facility, client, line)
