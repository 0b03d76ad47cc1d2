"""RocketMQ's gRPC messages as the door's own values, and back."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from txbridge.core.decision_record import Decision
from txbridge.core.names import CHECK_IMMUNITY_TIME
from txbridge_rocketmq import identity, mapping, routes
from txbridge_rocketmq.codes import (
    NAMESPACE_REFUSAL,
    BodyTooLargeError,
    RequestError,
    ResponseCode,
    UnauthenticatedError,
)
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.mapping import DELAYS, DELIVER_MS
from txbridge_rocketmq.message import COMPRESSED
from txbridge_rocketmq.requests import PGROUP, TRAN_MSG, UNIQ_KEY, ClientDecision, SendRequest

_PACKAGES = ("rocketmq", "rocketmq.grpc_protocol")


def _load(*names: str) -> list[Any]:
    """Import the classes of the protocol, as RocketMQ's official Python client ships them, alone.

    Their package is the whole client. Its import opens a log file in the home directory, which a container may not be
    able to write, and loads exporters of OpenTelemetry. So its `__init__` does not run here. An application that
    imports the client afterwards gets all of it.
    """
    spec = importlib.util.find_spec(_PACKAGES[0])
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'rocketmq'", name="rocketmq")
    folders = list(spec.submodule_search_locations)
    stand_ins = []
    for name in _PACKAGES:
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [f"{folder}/{name.replace('.', '/').partition('/')[2]}" for folder in folders]
            sys.modules[name] = package
            stand_ins.append(name)
    try:
        return [importlib.import_module(f"{_PACKAGES[-1]}.{name}") for name in names]
    finally:
        for name in stand_ins:
            del sys.modules[name]


definition, service = _load("definition_pb2", "service_pb2")
SERVICE = service.DESCRIPTOR.services_by_name["MessagingService"]

Code = definition.Code
_TAGS, _TRACE = "TAGS", "__TRACE_CONTEXT"
#: Properties that are fields of the message, or the door's own. RocketMQ's proxy also refuses them from a user.
_SYSTEM = frozenset(
    {
        *DELAYS,
        *(TRAN_MSG, PGROUP, UNIQ_KEY, CHECK_IMMUNITY_TIME, _TAGS, _TRACE),
        *(mapping.KEYS, mapping.SHARDING_KEY, mapping.WAIT),
        *("REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES", "__transactionId__"),
    }
)
#: Separators of properties in the remoting protocol, which must be able to carry the message as well.
_SEPARATORS = re.compile("[\x01\x02]")
#: The id of the transaction, the coordinates of the half message, and the number of the check that is answered.
_TOKEN = re.compile(r"([0-9A-F]{32})([0-9A-F]{16})([0-9A-F]{4})", re.ASCII)
#: Message types that every topic takes. A client itself refuses to send others.
_TYPES = (definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION)
#: Longest endpoints of a client, in bytes: some thirty names. Every queue of a route repeats them.
_LONGEST_ENDPOINTS = 2_048
#: System flags by the encoding of a body. gRPC's protocol has no LZ4 and no ZSTD.
_SYS_FLAGS = {definition.ENCODING_UNSPECIFIED: 0, definition.IDENTITY: 0, definition.GZIP: COMPRESSED}
_CODES = {
    ResponseCode.SYSTEM_ERROR: Code.INTERNAL_SERVER_ERROR,
    ResponseCode.SYSTEM_BUSY: Code.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: Code.UNSUPPORTED,
    ResponseCode.MESSAGE_ILLEGAL: Code.BAD_REQUEST,
    ResponseCode.SERVICE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
    ResponseCode.NO_PERMISSION: Code.FORBIDDEN,
    ResponseCode.TOPIC_NOT_EXIST: Code.TOPIC_NOT_FOUND,
    ResponseCode.INVALID_PARAMETER: Code.BAD_REQUEST,
}


class RpcError(RequestError):
    """A request that is answered with a code that gRPC alone has."""

    def __init__(self, status: int, remark: str) -> None:
        super().__init__(ResponseCode.MESSAGE_ILLEGAL, remark)
        self.status = status


def status_of(error: RequestError) -> Any:
    """The status that tells a client of the error."""
    if isinstance(error, RpcError):
        code = error.status
    elif isinstance(error, UnauthenticatedError):
        code = Code.UNAUTHORIZED
    elif isinstance(error, BodyTooLargeError):
        code = Code.MESSAGE_BODY_TOO_LARGE
    else:
        code = _CODES[error.code]
    return definition.Status(code=code, message=error.remark)


def topic_of(resource: Any) -> str:
    """Name of a topic. Raises RequestError if it is in a namespace."""
    if resource.resource_namespace:
        raise RpcError(Code.ILLEGAL_TOPIC, NAMESPACE_REFUSAL)
    return str(resource.name)


def send_of(message: Any) -> tuple[SendRequest, bytes]:
    """Read a message of a SendMessage: the request, and the body. Raises RequestError."""
    system = message.system_properties
    topic = topic_of(message.topic)
    if not topic:
        raise RpcError(Code.ILLEGAL_TOPIC, "topic is missing")
    sys_flag = _SYS_FLAGS.get(system.body_encoding)
    if sys_flag is None:
        raise RpcError(Code.BAD_REQUEST, f"body_encoding {system.body_encoding} is neither IDENTITY nor GZIP")
    if not message.body:
        raise RpcError(Code.MESSAGE_BODY_EMPTY, "the body is empty")
    if not system.message_id:
        raise RpcError(Code.ILLEGAL_MESSAGE_ID, "message_id is missing")
    properties = _properties_of(message.user_properties, system)
    if system.message_type not in {definition.MESSAGE_TYPE_UNSPECIFIED, *_TYPES} or system.HasField("lite_topic"):
        raise RpcError(Code.UNSUPPORTED, "the txbridge door supports neither lite topics nor priorities")
    if system.HasField("delivery_timestamp"):
        properties[DELIVER_MS] = str(_ms_of(system.delivery_timestamp, Code.ILLEGAL_DELIVERY_TIME))
    elif system.message_type == definition.DELAY:
        raise RpcError(Code.ILLEGAL_DELIVERY_TIME, "a DELAY message needs a delivery_timestamp")
    if system.message_type == definition.FIFO and not system.message_group:
        raise RpcError(Code.ILLEGAL_MESSAGE_GROUP, "a FIFO message needs a message group")
    if system.message_type == definition.TRANSACTION:
        if system.message_group:
            raise RpcError(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                "a transactional message cannot have a message group, as in RocketMQ",
            )
        properties |= {TRAN_MSG: "true", PGROUP: topic}
    send = SendRequest(
        # As in RocketMQ's proxy: producers of gRPC have no groups.
        group=topic,
        topic=topic,
        # Clients choose among the queues of all doors, and some do not send their choice. Kafka's hash of the key keeps
        # messages with the same key in one partition, whatever doors there are.
        queue_id=-1,
        sys_flag=sys_flag,
        born=_ms_of(system.born_timestamp, Code.BAD_REQUEST),
        flag=0,
        properties=properties,
        is_batch=False,
    )
    return send, message.body


def _ms_of(timestamp: Any, code: int) -> int:
    """Milliseconds since 1970. Raises RpcError with the code for a time that protobuf does not allow."""
    try:
        return int(timestamp.ToMilliseconds())
    except ValueError:
        raise RpcError(code, "the message has a time that is not between the years 1 and 9999") from None


def _properties_of(given: Mapping[str, str], system: Any) -> dict[str, str]:
    properties = dict(given)
    for name, value in properties.items():
        if not name or name in _SYSTEM:
            raise RpcError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property {name[:80]!r} is one of RocketMQ's own")
        if _SEPARATORS.search(name) or _SEPARATORS.search(value):
            raise RpcError(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"the property {name[:80]!r} contains a control character"
            )
    keys = " ".join(system.keys)
    fields = {
        UNIQ_KEY: system.message_id,
        _TAGS: system.tag,
        mapping.KEYS: keys,
        mapping.SHARDING_KEY: system.message_group,
        _TRACE: system.trace_context,
    }
    for name, value in fields.items():
        if _SEPARATORS.search(value):
            raise RpcError(Code.BAD_REQUEST, f"{name} contains a control character")
        if value:
            properties[name] = value
    if system.HasField("orphaned_transaction_recovery_duration"):
        properties[CHECK_IMMUNITY_TIME] = str(system.orphaned_transaction_recovery_duration.ToSeconds())
    return properties


def token(transaction: str, partition: int, offset: int, check_times: int = 0) -> str:
    """The transaction id that a client gets, and sends back with its END."""
    return f"{transaction}{identity.packed(partition, offset):016X}{check_times & 0x7FFF:04X}"


_DECISIONS = {
    definition.COMMIT: Decision.COMMIT,
    definition.ROLLBACK: Decision.ROLLBACK,
    definition.TRANSACTION_RESOLUTION_UNSPECIFIED: Decision.UNKNOWN,
}


def end_of(request: Any, secret: bytes) -> ClientDecision:
    """Read an EndTransaction. Raises RequestError.

    Only a client that has sent the message, or was asked about it, knows the transaction id. Others cannot guess it.
    """
    topic = topic_of(request.topic)
    found = _TOKEN.fullmatch(request.transaction_id)
    made = identity.transaction_id
    fingerprint = found and identity.own_fingerprint(made, secret, topic, request.message_id, found[1])
    if found is None or fingerprint is None:
        raise RpcError(
            Code.INVALID_TRANSACTION_ID,
            "the transaction id is not the one that a door gave for this topic and message, or that door has another "
            "secret",
        )
    decision = _DECISIONS.get(request.resolution)
    if decision is None:
        raise RpcError(Code.BAD_REQUEST, "resolution is neither COMMIT nor ROLLBACK")
    partition, offset = identity.unpacked(int(found[2], 16))
    is_answer = request.source == definition.SOURCE_SERVER_CHECK
    check_times = int(found[3], 16) if is_answer else 0
    return ClientDecision(
        topic, request.message_id, fingerprint, partition, offset, decision, is_answer, check_times or None, None
    )


def orphan_of(question: ClientCheck) -> Any:
    """The command that asks a client about its transaction."""
    message = question.message
    properties = mapping.properties_of(message.headers)
    body = message.value or b""
    # SHA-1, because clients write a CRC32 in different ways, some without its leading zeros. The digest protects from
    # accidents only.
    digest = definition.Digest(
        type=definition.SHA1, checksum=hashlib.sha1(body, usedforsecurity=False).hexdigest().upper()
    )
    born_host = (dict(message.headers).get(mapping.BORN_HOST) or b"").decode(errors="replace")
    system = definition.SystemProperties(
        keys=mapping.keys_of(properties),
        message_id=question.uniq_key,
        body_digest=digest,
        body_encoding=definition.IDENTITY,
        message_type=definition.TRANSACTION,
        born_host=born_host,
        queue_id=message.partition or 0,
        queue_offset=message.half_offset,
        delivery_attempt=message.check_times,
    )
    born = message.born_timestamp or 0
    system.born_timestamp.FromMilliseconds(message.timestamp or born)
    system.store_timestamp.FromMilliseconds(born)
    if tag := properties.get(_TAGS):
        system.tag = tag
    if group := properties.get(mapping.SHARDING_KEY):
        system.message_group = group
    if trace := properties.get(_TRACE):
        system.trace_context = trace
    if message.check_immunity_time is not None:
        system.orphaned_transaction_recovery_duration.FromSeconds(message.check_immunity_time)
    if message.deliver_at is not None:
        system.delivery_timestamp.FromMilliseconds(message.deliver_at)
    told = definition.Message(
        topic=definition.Resource(name=message.topic),
        user_properties={name: value for name, value in properties.items() if name not in _SYSTEM},
        system_properties=system,
        body=body,
    )
    which = token(message.transaction_id, message.half_partition, message.half_offset, message.check_times)
    return service.TelemetryCommand(
        recover_orphaned_transaction_command=service.RecoverOrphanedTransactionCommand(
            message=told, transaction_id=which
        )
    )


def queues_of(topic: str, endpoints: Any, count: int) -> list[Any]:
    """Queues of a topic, all at one broker: a client reaches it as it has reached this door, as in RocketMQ's proxy.

    So it needs no door but the one that answers. Any door takes messages for any partition. Raises RequestError.
    """
    if not endpoints.addresses or endpoints.ByteSize() > _LONGEST_ENDPOINTS:
        raise RpcError(
            Code.ILLEGAL_ACCESS_POINT,
            f"endpoints must hold the addresses by which the client reaches the door, in {_LONGEST_ENDPOINTS} bytes",
        )
    broker = definition.Broker(name=routes.CLUSTER, id=0, endpoints=endpoints)
    return [
        definition.MessageQueue(
            topic=definition.Resource(name=topic),
            id=number,
            permission=definition.READ_WRITE,
            broker=broker,
            accept_message_types=_TYPES,
        )
        for number in range(count)
    ]


def settings_of(given: Any, max_body_size: int) -> Any:
    """A producer's settings, with the values that the door sets."""
    settings = definition.Settings()
    settings.CopyFrom(given)
    settings.publishing.max_body_size = max_body_size
    settings.publishing.validate_message_type = True
    # The values of RocketMQ's proxy. A client waits this long after TOO_MANY_REQUESTS.
    settings.backoff_policy.max_attempts = settings.backoff_policy.max_attempts or 3
    backoff = settings.backoff_policy.exponential_backoff
    backoff.initial.FromMilliseconds(10)
    backoff.max.FromMilliseconds(1_000)
    backoff.multiplier = 2
    settings.metric.on = False
    return settings
