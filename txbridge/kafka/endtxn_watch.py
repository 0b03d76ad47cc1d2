"""A watch for requests to end a Kafka transaction that librdkafka may have sent twice.

librdkafka re-sends EndTxn by itself after a broken connection. It uses transaction protocol V1, in which a late copy of
the request can end the next transaction of the same producer (KAFKA-17754), and commit half of it. But for
librdkafka a connection that breaks during EndTxn is no error: it calls no callback, and the commit succeeds. Only its
debug lines of the context `eos`, about 30 for a transaction, show the result of EndTxn.

The same lines show how often librdkafka has registered partitions with a transaction, and how often Kafka was not ready
for it. A small transaction spends most of its waiting time there, and no other source has these numbers.
"""

from __future__ import annotations

import logging
import re
from typing import NamedTuple

from confluent_kafka import KafkaError

from txbridge.kafka.errors import FENCED_CODES, note_cause

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
    """Give `on_error` as a producer's `error_cb` and the watch itself as its `logger`; both are called in poll()."""

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
