"""Requests as values: SEND in its three forms, END_TRANSACTION, and UPDATE_AND_CREATE_TOPIC."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from txbridge.core.decision_record import Decision
from txbridge_rocketmq.codes import RequestCode, RequestError, ResponseCode
from txbridge_rocketmq.command import RemotingCommand
from txbridge_rocketmq.identity import fingerprint_in, unpacked
from txbridge_rocketmq.message import PREPARED, TRANSACTION_MASK, parse_properties
from txbridge_rocketmq.routes import READ_AND_WRITE

_NUMBER = re.compile(r"-?[0-9]{1,19}\Z")
#: The short names of SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, by those of SEND_MESSAGE.
_SHORT = {
    "producerGroup": "a",
    "topic": "b",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
    "batch": "m",
}
#: Fields that clients send with the requests that the door serves: those of Java up to RocketMQ 5.5, of Go and of C++.
#: The ones that stand here belong to any request.
_FIELDS: dict[int, frozenset[str]] = {
    code: frozenset(f"AccessKey Signature SecurityToken bname lo ns nsd oway ReqT {names}".rstrip(" ").split(" "))
    for code, names in {
        RequestCode.SEND_MESSAGE: f"{' '.join(_SHORT)} defaultTopic defaultTopicQueueNums reconsumeTimes unitMode "
        "maxReconsumeTimes",
        RequestCode.SEND_MESSAGE_V2: "a b c d e f g h i j k l m n",
        RequestCode.SEND_BATCH_MESSAGE: "a b c d e f g h i j k l m n",
        RequestCode.HEART_BEAT: "",
        RequestCode.END_TRANSACTION: "producerGroup topic tranStateTableOffset commitLogOffset commitOrRollback "
        "fromTransactionCheck msgId transactionId",
        RequestCode.UNREGISTER_CLIENT: "clientID producerGroup consumerGroup",
        RequestCode.GET_ROUTEINFO_BY_TOPIC: "topic acceptStandardJsonOnly",
        RequestCode.UPDATE_AND_CREATE_TOPIC: "topic defaultTopic readQueueNums writeQueueNums perm topicFilterType "
        "topicSysFlag order attributes force",
        RequestCode.GET_PRODUCER_CONNECTION_LIST: "producerGroup",
        RequestCode.GET_BROKER_RUNTIME_INFO: "",
        RequestCode.GET_BROKER_CLUSTER_INFO: "",
    }.items()
}
#: Requests in whose body the rest of another request could be hidden.
_WITHOUT_BODY = (RequestCode.END_TRANSACTION, RequestCode.UPDATE_AND_CREATE_TOPIC)
#: Maximum of queues of a new topic, as of `txbridge topics`. A larger number is a typing error.
_MAX_QUEUES = 10_000
TRAN_MSG, PGROUP, UNIQ_KEY = "TRAN_MSG", "PGROUP", "UNIQ_KEY"
#: Prefix of the groups in which a client with enableMsgTrace sends data about its messages.
_TRACE_GROUP = "_INNER_TRACE_PRODUCER"
#: Groups that clients introduce by themselves, the first one for retry messages. They have no transactions.
_INNER_GROUPS = ("CLIENT_INNER_PRODUCER", _TRACE_GROUP)


class SendRequest(NamedTuple):
    """A message, or a batch of them. A tuple: a frozen dataclass takes 2 µs more."""

    group: str
    topic: str
    #: Any queue if it is negative.
    queue_id: int
    sys_flag: int
    #: Time in ms, by the clock of the client.
    born: int
    flag: int
    properties: dict[str, str]
    is_batch: bool

    @property
    def is_transactional(self) -> bool:
        """Whether it is transactional, by the property and not by the flag, as in RocketMQ."""
        return self.properties.get(TRAN_MSG, "").lower() == "true"

    @property
    def is_trace(self) -> bool:
        """Whether it is data about other messages, and not a message of the application."""
        return self.group.startswith(_TRACE_GROUP) and not self.is_transactional


class ClientDecision(NamedTuple):
    """The decision about a local transaction."""

    group: str
    #: The client's id of the transaction.
    uniq_key: str
    #: The part of the transaction id that the client has brought back.
    fingerprint: str
    half_partition: int
    half_offset: int
    decision: Decision
    is_answer: bool
    #: The number of the check that is answered.
    check_times: int | None
    remark: str | None


def is_inner_group(group: str) -> bool:
    """Whether a client has introduced this group by itself."""
    return group.startswith(_INNER_GROUPS)


def foreign_part(command: RemotingCommand) -> str:
    """What no client of RocketMQ sends with a request that the door serves; empty if there is nothing."""
    foreign = command.fields.keys() - _FIELDS.get(command.code, frozenset(command.fields))
    if foreign:
        return f"the field {min(foreign)[:80]!r}"
    return "a body" if command.body and command.code in _WITHOUT_BODY else ""


def parse_send(command: RemotingCommand) -> SendRequest:
    """Read a SEND. Raises RequestError."""
    short = command.code != RequestCode.SEND_MESSAGE
    fields = {long: command.fields.get(_SHORT[long] if short else long, "") for long in _SHORT}
    is_batch = command.code == RequestCode.SEND_BATCH_MESSAGE or fields["batch"] == "true"
    send = SendRequest(
        group=_text(fields, "producerGroup"),
        topic=_text(fields, "topic"),
        queue_id=_number(fields, "queueId"),
        sys_flag=_number(fields, "sysFlag"),
        born=_number(fields, "bornTimestamp"),
        flag=_number(fields, "flag"),
        properties=parse_properties(fields["properties"]),
        is_batch=is_batch,
    )
    if not -(2**31) <= send.flag < 2**31 or not 0 <= send.sys_flag < 2**31:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "flag and sysFlag must be 32-bit numbers")
    if not command.body:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the body is empty")
    if is_batch and send.is_transactional:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot be transactional")
    if send.sys_flag & TRANSACTION_MASK and not send.is_transactional:
        kind = "PREPARED" if send.sys_flag & TRANSACTION_MASK == PREPARED else "COMMIT or ROLLBACK"
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"sysFlag says {kind}, but the property {TRAN_MSG} is not true: no consumer would ever see it",
        )
    return send


def parse_topic(fields: Mapping[str, str]) -> tuple[str, int]:
    """Read the name and the number of queues of an UPDATE_AND_CREATE_TOPIC. Raises RequestError."""
    topic, queues = _text(fields, "topic"), _number(fields, "writeQueueNums")
    if not 1 <= queues <= _MAX_QUEUES:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"writeQueueNums must be between 1 and {_MAX_QUEUES}")
    if _number(fields, "perm") != READ_AND_WRITE:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            "perm must be 6, read and write: Kafka's ACLs say who may read a topic or write to it",
        )
    return topic, queues


_DECISIONS = {decision.value: decision for decision in Decision}


def parse_end(command: RemotingCommand) -> ClientDecision:
    """Read an END_TRANSACTION. Raises RequestError."""
    fields = command.fields
    decision = _DECISIONS.get(_number(fields, "commitOrRollback"))
    if decision is None:
        raise RequestError(ResponseCode.SYSTEM_ERROR, "commitOrRollback field wrong: 8, 12 or 0 is expected")
    uniq_key = fields.get("transactionId") or fields.get("msgId", "")
    if not uniq_key:
        raise RequestError(ResponseCode.INVALID_PARAMETER, "transactionId and msgId are missing")
    partition, offset = unpacked(_number(fields, "commitLogOffset"))
    is_answer = fields.get("fromTransactionCheck", "").lower() == "true"
    check_times, table_offset = unpacked(_number(fields, "tranStateTableOffset"))
    fingerprint = fingerprint_in(table_offset)
    if not fingerprint or (check_times and not is_answer):
        raise RequestError(ResponseCode.SYSTEM_ERROR, "The transaction state table offset wrong")
    group = _text(fields, "producerGroup")
    return ClientDecision(
        group, uniq_key, fingerprint, partition, offset, decision, is_answer, check_times or None, command.remark
    )


def _text(fields: Mapping[str, str], name: str) -> str:
    if not fields.get(name):
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name} is missing")
    return fields[name]


def _number(fields: Mapping[str, str], name: str) -> int:
    text = _text(fields, name)
    if _NUMBER.match(text) is None:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"{name} is not a number: {text[:40]!r}")
    return int(text)
