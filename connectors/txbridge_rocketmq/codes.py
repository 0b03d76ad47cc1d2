"""Codes of requests and answers in RocketMQ's remoting protocol, and errors that carry a code."""

from __future__ import annotations

from enum import IntEnum

from txbridge.masking import masked

#: The bytes with which a client of HTTP/2, and so of gRPC, begins a connection.
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class RequestCode(IntEnum):
    """Requests that the door knows by name; it serves some, and refuses the others with a sentence."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    #: The door sends this one to a producer.
    CHECK_TRANSACTION_STATE = 39
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    GET_PRODUCER_CONNECTION_LIST = 204
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    POP_MESSAGE = 200050


class ResponseCode(IntEnum):
    """Codes of answers. A producer tries again by itself after some of them (docs/rocketmq.md)."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    INVALID_PARAMETER = 29


CONSUMER_REFUSAL = (
    "the txbridge door serves RocketMQ producers, not consumers: read the Kafka topic of the same name with a Kafka "
    "consumer and isolation.level=read_committed"
)
NAMESPACE_REFUSAL = (
    "the txbridge door does not support RocketMQ namespaces: leave the client's namespace empty, and start a door for "
    "each namespace of txbridge"
)
#: Refused properties. A message with one would be delivered, but not as its producer expects.
REFUSED_PROPERTIES: dict[str, str] = {
    "REPLY_TO_CLIENT": (
        "the txbridge door does not support request and reply: no answer would come. Send the message without waiting "
        "for one, and let the consumer send its answer to a topic"
    ),
    "_SYS_MSG_PRIORITY_": "the txbridge door does not support priorities: Kafka delivers a partition in its order",
    "__LITE_TOPIC": "the txbridge door does not support lite topics: send to a topic of Kafka",
}
#: What to do instead of refused requests. All others that are not served get RocketMQ's own sentence.
_ADVICE = {
    CONSUMER_REFUSAL: "PULL_MESSAGE QUERY_CONSUMER_OFFSET UPDATE_CONSUMER_OFFSET SEARCH_OFFSET_BY_TIMESTAMP "
    "GET_MAX_OFFSET GET_MIN_OFFSET GET_EARLIEST_MSG_STORETIME CONSUMER_SEND_MSG_BACK GET_CONSUMER_LIST_BY_GROUP "
    "LOCK_BATCH_MQ UNLOCK_BATCH_MQ CHECK_CLIENT_CONFIG LITE_PULL_MESSAGE QUERY_ASSIGNMENT POP_MESSAGE",
    "the txbridge door does not recall messages: `txbridge resolve PARTITION:OFFSET abandon --reason WHY` cancels a "
    "delayed one": "RECALL_MESSAGE",
}
REFUSALS: dict[int, str] = {RequestCode[name]: text for text, names in _ADVICE.items() for name in names.split(" ")}


def refusal(code: int) -> str:
    """The remark for a request that is not served."""
    return REFUSALS.get(code, f" request type {code} not supported")


class RequestError(Exception):
    """A request that is answered with this code and remark."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        self.remark = masked(remark)
        super().__init__(self.remark)
        self.code = code


class BodyTooLargeError(RequestError):
    """A body that is too large, or that would be without its compression."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the body has more than the {limit} bytes that the half topic allows (max_message_size of the topic plan)",
        )


class UnauthenticatedError(RequestError):
    """A request without a known access key and its valid signature."""
