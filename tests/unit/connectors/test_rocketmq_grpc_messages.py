"""RocketMQ's gRPC messages as the front door reads and writes them, and its access control."""

from __future__ import annotations

import hashlib
import hmac
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from txbridge_rocketmq.access import AccessKeys
from txbridge_rocketmq.codes import RequestError, UnauthenticatedError
from txbridge_rocketmq.groups import ClientCheck
from txbridge_rocketmq.grpc_messages import (
    Code,
    definition,
    end_of,
    orphan_of,
    queues_of,
    send_of,
    service,
    settings_of,
    status_of,
    token,
)
from txbridge_rocketmq.message import decompressed

from txbridge.client.message import Message, MessageExt
from txbridge.core.decision_record import Decision

SECRET = b"the secret of all doors of a test"
#: The first 80 bits of the HMAC-SHA256 of "orders", "01AB" and the fingerprint under the secret, and the fingerprint.
FINGERPRINT = "ABCDEF012345"
TRANSACTION = hmac.new(SECRET, b"orders\x0001AB\0ABCDEF012345", hashlib.sha256).hexdigest()[:20].upper() + FINGERPRINT


def message(**system: Any) -> Any:
    fields = {"message_id": "01AB", "message_type": definition.NORMAL, "body_encoding": definition.IDENTITY, **system}
    return definition.Message(
        topic=definition.Resource(name="orders"),
        user_properties={"p": "v"},
        system_properties=definition.SystemProperties(**fields),
        body=b"body",
    )


def test_the_classes_come_without_the_client_that_they_are_shipped_with() -> None:
    """The client's import would write into the home directory; grpcio, which is installed with it, takes 30 MiB."""
    program = (
        "import sys, txbridge_rocketmq.grpc_service\n"
        "print(sorted(one for one in sys.modules if one.split('.')[0] in {'rocketmq', 'opentelemetry', 'grpc'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['rocketmq.grpc_protocol.definition_pb2', 'rocketmq.grpc_protocol.service_pb2']"


def test_a_transactional_message_is_one_of_the_remoting_protocol_in_the_group_of_its_topic() -> None:
    given = message(message_type=definition.TRANSACTION, tag="t", keys=["k1", "k2"])
    given.system_properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    given.system_properties.orphaned_transaction_recovery_duration.FromSeconds(30)
    send, body = send_of(given)
    assert (send.group, send.topic, send.queue_id, send.born, body) == (
        "orders",
        "orders",
        -1,
        1_700_000_000_123,
        b"body",
    )
    assert send.is_transactional
    assert send.properties == {
        "p": "v",
        "TAGS": "t",
        "KEYS": "k1 k2",
        "UNIQ_KEY": "01AB",
        "TRAN_MSG": "true",
        "PGROUP": "orders",
        "CHECK_IMMUNITY_TIME_IN_SECONDS": "30",
    }


def test_a_fifo_message_has_its_group_as_sharding_key() -> None:
    send, _ = send_of(message(message_type=definition.FIFO, message_group="g"))
    assert send.properties["__SHARDINGKEY"] == "g"
    assert not send.is_transactional


@pytest.mark.parametrize("kind", [definition.DELAY, definition.TRANSACTION])
def test_a_time_of_delivery_is_one_of_the_remoting_protocol(kind: int) -> None:
    given = message(message_type=kind)
    given.system_properties.delivery_timestamp.FromMilliseconds(1_700_000_000_123)
    send, _ = send_of(given)
    assert send.properties["TIMER_DELIVER_MS"] == "1700000000123"
    assert send.is_transactional is (kind == definition.TRANSACTION)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda one: one.topic.ClearField("name"), Code.ILLEGAL_TOPIC),
        (lambda one: setattr(one.topic, "resource_namespace", "n"), Code.ILLEGAL_TOPIC),
        (lambda one: one.ClearField("body"), Code.MESSAGE_BODY_EMPTY),
        (lambda one: one.system_properties.ClearField("message_id"), Code.ILLEGAL_MESSAGE_ID),
        (lambda one: one.user_properties.update(TRAN_MSG="true"), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (lambda one: one.user_properties.update({"a": "b\x02c"}), Code.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (lambda one: setattr(one.system_properties, "tag", "a\x01b"), Code.BAD_REQUEST),
        (lambda one: setattr(one.system_properties, "message_type", definition.FIFO), Code.ILLEGAL_MESSAGE_GROUP),
        (lambda one: setattr(one.system_properties, "message_type", definition.PRIORITY), Code.UNSUPPORTED),
        # A type that a later version of the protocol may have.
        (lambda one: setattr(one.system_properties, "message_type", 77), Code.UNSUPPORTED),
        (lambda one: setattr(one.system_properties.born_timestamp, "seconds", 2**62), Code.BAD_REQUEST),
        (lambda one: setattr(one.system_properties.born_timestamp, "nanos", -5), Code.BAD_REQUEST),
        (
            lambda one: setattr(one.system_properties.delivery_timestamp, "seconds", -(2**62)),
            Code.ILLEGAL_DELIVERY_TIME,
        ),
        (lambda one: setattr(one.system_properties, "body_encoding", 7), Code.BAD_REQUEST),
        (lambda one: setattr(one.system_properties, "message_type", definition.DELAY), Code.ILLEGAL_DELIVERY_TIME),
        (
            lambda one: one.system_properties.MergeFrom(
                definition.SystemProperties(message_type=definition.TRANSACTION, message_group="g")
            ),
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
    ],
)
def test_a_message_that_is_refused(change: Callable[[Any], object], code: int) -> None:
    given = message()
    change(given)
    with pytest.raises(RequestError) as caught:
        send_of(given)
    assert status_of(caught.value).code == code


def test_a_gzipped_body_is_unpacked() -> None:
    import gzip

    send, body = send_of(message(body_encoding=definition.GZIP))
    assert body == b"body"
    assert decompressed(gzip.compress(b"x" * 1_000), send.sys_flag, 1_000) == b"x" * 1_000
    with pytest.raises(RequestError) as caught:
        decompressed(gzip.compress(b"x" * 1_001), send.sys_flag, 1_000)
    assert status_of(caught.value).code == Code.MESSAGE_BODY_TOO_LARGE


def ending(transaction: str, **more: Any) -> Any:
    return service.EndTransactionRequest(
        topic=definition.Resource(name="orders"),
        message_id="01AB",
        transaction_id=transaction,
        **{"resolution": definition.COMMIT, "source": definition.SOURCE_CLIENT, **more},
    )


def test_an_end_brings_back_where_the_half_message_is() -> None:
    given = token(TRANSACTION, 3, 1_234_567)
    assert given == f"{TRANSACTION}000300000012D6870000"
    end = end_of(ending(given), SECRET)
    assert (end.group, end.uniq_key, end.half_partition, end.half_offset) == ("orders", "01AB", 3, 1_234_567)
    assert end.fingerprint == FINGERPRINT
    assert (end.decision, end.is_answer, end.check_times) == (Decision.COMMIT, False, None)
    answer = end_of(
        ending(
            token(TRANSACTION, 3, 1_234_567, 2), source=definition.SOURCE_SERVER_CHECK, resolution=definition.ROLLBACK
        ),
        SECRET,
    )
    assert (answer.decision, answer.is_answer, answer.check_times) == (Decision.ROLLBACK, True, 2)
    unknown = end_of(ending(given, resolution=definition.TRANSACTION_RESOLUTION_UNSPECIFIED), SECRET)
    assert unknown.decision is Decision.UNKNOWN


@pytest.mark.parametrize("wrong", ["", "01AB", "0" * 52, "x" * 52, token(TRANSACTION[:-1] + "6", 0, 0)])
def test_an_end_with_an_id_that_no_door_gave_is_refused(wrong: str) -> None:
    with pytest.raises(RequestError) as caught:
        end_of(ending(wrong), SECRET)
    assert status_of(caught.value).code == Code.INVALID_TRANSACTION_ID
    with pytest.raises(RequestError):
        end_of(ending(token(TRANSACTION, 0, 0)), b"another secret of another deployment")


def test_a_check_has_the_message_as_it_was_sent() -> None:
    headers = [("p", b"v"), ("TAGS", b"t"), ("KEYS", b"k1 k2")]
    headers += [("ROCKETMQ_UNIQ_KEY", b"01AB"), ("ROCKETMQ_BORN_HOST", b"1.2.3.4:5")]
    sent = Message("orders", b"body", headers=headers, timestamp=1_700_000_000_123)
    prepared = MessageExt.for_execution(sent, TRANSACTION, 3, 7, 1_700_000_000_456)
    asked = SimpleNamespace(**{**vars(prepared), "check_times": 2})
    command = orphan_of(ClientCheck("orders", "01AB", FINGERPRINT, asked)).recover_orphaned_transaction_command
    told, system = command.message, command.message.system_properties
    assert command.transaction_id == f"{TRANSACTION}00030000000000070002"
    assert (told.topic.name, told.body, dict(told.user_properties)) == ("orders", b"body", {"p": "v"})
    assert (system.message_id, system.tag, list(system.keys), system.born_host) == (
        "01AB",
        "t",
        ["k1", "k2"],
        "1.2.3.4:5",
    )
    assert system.body_encoding == definition.IDENTITY
    # By the command line: printf body | sha1sum
    assert (system.body_digest.type, system.body_digest.checksum) == (
        definition.SHA1,
        "02083F4579E08A612425C0C1A17EE47ADD783B94",
    )
    assert system.born_timestamp.ToMilliseconds() == 1_700_000_000_123


def test_a_route_has_every_queue_where_the_client_has_reached_the_door_and_all_its_types() -> None:
    # So the Java client writes two names. It refuses several addresses in a route with DOMAIN_NAME.
    addresses = [definition.Address(host=host, port=8081) for host in ("door-1", "door-2")]
    endpoints = definition.Endpoints(scheme=definition.IPv6, addresses=addresses)
    queues = queues_of("orders", endpoints, 2)
    assert [(one.broker.name, one.id) for one in queues] == [("txbridge", 0), ("txbridge", 1)]
    assert [one.broker.endpoints for one in queues] == [endpoints, endpoints]
    assert {tuple(one.accept_message_types) for one in queues} == {
        (definition.NORMAL, definition.FIFO, definition.DELAY, definition.TRANSACTION)
    }


@pytest.mark.parametrize("count", [0, 300])
def test_a_route_without_an_address_or_with_hundreds_is_refused(count: int) -> None:
    endpoints = definition.Endpoints(addresses=[definition.Address(host="door", port=8081)] * count)
    with pytest.raises(RequestError, match="addresses by which the client reaches the door") as caught:
        queues_of("orders", endpoints, 2)
    assert status_of(caught.value).code == Code.ILLEGAL_ACCESS_POINT


def test_settings_come_back_with_the_limit_and_a_back_off() -> None:
    """A client of Java refuses settings without an exponential back-off."""
    given = definition.Settings(client_type=definition.PRODUCER)
    given.publishing.topics.add(name="orders")
    told = settings_of(given, 1_000_000)
    assert told.client_type == definition.PRODUCER
    assert (told.publishing.max_body_size, told.publishing.topics[0].name) == (1_000_000, "orders")
    assert told.backoff_policy.WhichOneof("strategy") == "exponential_backoff"
    assert given.publishing.max_body_size == 0


def keys(folder: Path, limits: str = "") -> AccessKeys:
    file = folder / "keys.toml"
    file.write_text(f'[[key]]\naccess_key = "ak"\nsecret_key = "the secret key"\n{limits}\n')
    return AccessKeys(file)


def signed(when: str) -> str:
    return hmac.new(b"the secret key", when.encode(), hashlib.sha1).hexdigest()


def header(name: str, signature: str) -> str:
    return f"MQv2-HMAC-SHA1 Credential={name}, SignedHeaders=x-mq-date-time, Signature={signature}"


def test_access_keys(tmp_path: Path) -> None:
    access, when = keys(tmp_path), f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    right = signed(when)

    for given in (header("ak", right), header("ak", right.upper()), header("ak/region/service", right)):
        key = access.check_rpc(given, when, "1.2.3.4:5")
        assert key is not None
        assert key.name == "ak"
    for given in ("", "Basic x", header("", right), header("nobody", right), header("ak", "00"), header("ak", "")):
        with pytest.raises(UnauthenticatedError) as caught:
            access.check_rpc(given, when, "1.2.3.4:5")
        assert status_of(caught.value).code == Code.UNAUTHORIZED
    with pytest.raises(UnauthenticatedError):
        access.check_rpc(header("ak", right), f"{when}Z", "1.2.3.4:5")
    assert AccessKeys().check_rpc("", "", "1.2.3.4:5") is None


@pytest.mark.parametrize(
    ("form", "hours", "is_taken"),
    [
        # Node and C++ write UTC; Java, Go, Python and C# the local time of their zone, in the same form.
        ("%Y%m%dT%H%M%SZ", 0, True),
        ("%Y%m%dT%H%M%SZ", 14, True),
        ("%Y%m%dT%H%M%SZ", -12, True),
        ("%Y%m%dT%H%M%SZ", 16, False),
        ("%Y%m%dT%H%M%SZ", -14, False),
        # Rust names its zone.
        ("%Y-%m-%dT%H:%M:%S.123456789+00:00", 0, True),
        ("%Y-%m-%dT%H:%M:%S.123456789+05:30", 5.5 - 12, True),
        ("%Y-%m-%dT%H:%M:%S.123456789+05:30", 5.5 - 14, False),
        ("yesterday", 0, False),
    ],
)
def test_the_time_of_a_request_is_compared_with_the_clock(
    tmp_path: Path, form: str, hours: float, *, is_taken: bool
) -> None:
    when = (datetime.now(UTC) + timedelta(hours=hours)).strftime(form)
    with nullcontext() if is_taken else pytest.raises(UnauthenticatedError, match="set the client's clock"):
        assert keys(tmp_path).check_rpc(header("ak", signed(when)), when, "1.2.3.4:5") is not None


def test_a_key_limits_topics_by_its_groups_and_by_its_topics(tmp_path: Path) -> None:
    when = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    for limits, expected in (
        ('groups = ["a", "b"]', {"a", "b"}),
        ('topics = ["b", "c"]', {"b", "c"}),
        ('groups = ["a", "b"]\ntopics = ["b", "c"]', {"b"}),
        ("", None),
    ):
        key = keys(tmp_path, limits).check_rpc(header("ak", signed(when)), when, "1.2.3.4:5")
        assert key is not None
        assert key.groups == expected
