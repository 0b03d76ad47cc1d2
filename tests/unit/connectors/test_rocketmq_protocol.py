"""The remoting protocol in values, against frames that were captured between real clients and a real broker."""

from __future__ import annotations

import base64
import json
import struct
import sys
import tracemalloc
import zlib
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import lz4.frame
import pytest
from structlog.testing import capture_logs
from txbridge_rocketmq import identity, mapping, remoting
from txbridge_rocketmq.access import AccessKeys, require_group, require_topic, signature
from txbridge_rocketmq.codes import REFUSALS, RequestCode, RequestError, ResponseCode, refusal
from txbridge_rocketmq.command import FrameError, RemotingCommand, decode, length_of, response
from txbridge_rocketmq.door_options import door_options, read_secret
from txbridge_rocketmq.message import StoredMessage, decompressed, parse_address, parse_batch, parse_properties, text_of
from txbridge_rocketmq.requests import foreign_part, parse_end, parse_send
from txbridge_rocketmq.routes import route

from txbridge.cli.rocketmq import DoorPlace
from txbridge.client.message import MessageLimits
from txbridge.core.decision_record import Decision
from txbridge.errors import UsageError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

FRAMES = {
    name: bytes.fromhex(text)
    for name, text in json.loads((Path(__file__).parents[2] / "golden" / "rocketmq_frames.json").read_text()).items()
}
LIMITS = MessageLimits(1_000_000, 3_600)
NOW = 1_700_000_000_000


def of_frame(name: str):
    frame = FRAMES[name]
    assert length_of(frame) == len(frame) - 4
    return decode(frame[4:])


@pytest.mark.parametrize("name", ["4.9.8 send", "5.3.2 send", "5.3.2 binary send"])
def test_a_send_of_a_real_client(name: str) -> None:
    command = of_frame(name)
    send = parse_send(command)
    assert (command.code, command.is_oneway, command.body) == (RequestCode.SEND_MESSAGE_V2, False, b"body-commit")
    assert send.group == "cap_group"
    assert send.is_transactional
    assert not send.is_batch
    assert send.sys_flag == 4
    assert send.properties["TAGS"] == "tagA"
    assert send.properties["u"] == "v"
    assert len(send.properties["UNIQ_KEY"]) == 32


def test_a_send_with_long_names() -> None:
    command = of_frame("4.9.8 send")
    names = {"a": "producerGroup", "b": "topic", "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag"}
    names |= {"i": "properties", "m": "batch"}
    command.fields = {names[name]: value for name, value in command.fields.items() if name in names}
    command.code = RequestCode.SEND_MESSAGE
    assert parse_send(command) == parse_send(of_frame("4.9.8 send"))


@pytest.mark.parametrize("name", ["4.9.8 end", "5.3.2 end", "5.3.2 binary end"])
def test_an_end_of_a_real_client(name: str) -> None:
    command = of_frame(name)
    assert command.code == RequestCode.END_TRANSACTION
    assert command.is_oneway
    # As if the door had answered the SEND: partition 3, offset 77.
    command.fields |= {"commitLogOffset": str(3 << 48 | 77), "tranStateTableOffset": str(0xABCDEF012345)}
    end = parse_end(command)
    assert (end.group, end.half_partition, end.half_offset) == ("cap_group", 3, 77)
    assert end.decision is Decision.COMMIT
    assert not end.is_answer
    assert end.uniq_key == command.fields["msgId"]
    assert end.fingerprint == "ABCDEF012345"
    assert end.check_times is None


def test_the_check_of_a_real_broker_is_made_byte_for_byte() -> None:
    properties = (
        "MSG_REGION\1DefaultRegion\2UNIQ_KEY\1C00002021CFD30946E0968EBA9790000\2CLUSTER\1DefaultCluster\2"
        "PGROUP\1cap_group\2__transactionId__\1C00002021CFD30946E0968EBA9790000\2TAGS\1tagA\2TRAN_MSG\1true\2"
        "KEYS\1commit\2WAIT\1false\2TRACE_ON\1true\2TRANSACTION_CHECK_TIMES\0011\2REAL_TOPIC\1CapTopic532\2u\1v\2"
        "REAL_QID\0010\2"
    )
    stored = StoredMessage(
        topic="CapTopic532",
        queue_id=0,
        queue_offset=9,
        physical_offset=3914,
        flag=0,
        body=b"body-commit",
        properties=parse_properties(properties),
        born=0x01A1FD539179,
        stored=0x01A1FD5391A6,
        born_host=(ip_address("127.0.0.1"), 0xE0D2),
        store_host=(ip_address("127.0.0.1"), 30911),
    )
    assert stored.encode_message() == of_frame("broker check").body


def test_an_answer_is_json_that_names_the_request() -> None:
    frame = response(of_frame("4.9.8 send"), 0, fields={})
    header = json.loads(frame[8:])
    assert length_of(frame) == len(frame) - 4
    assert (header["opaque"], header["flag"], header["extFields"]) == (8, 1, {})


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0\xff{}",
        b"\x02\0\0\x02{}",
        b"\0\0\0\x02[]",
        b"\0\0\0\x02{}",
        b'\0\0\0\x0a{"code":1}'[:-1],
        b'\0\0\0\x0e{"code":"one"}',
        b'\0\0\0\x18{"code":1,"extFields":[]}',
        b'\0\0\0\x0d{"code":true}',
        b"\0\0\x90\0" + b"[" * 0x9000,
        b"\x01\0\0\x02{}",
        b"\x01\0\0\x16" + struct.pack(">hBhiiii", 1, 0, 1, 1, 0, 0, 99)[:22],
        # Two fields of one name: a gateway might take the other one.
        b"\0\0\0\x2a" + b'{"code":1,"extFields":{"b":"o","b":"pay"}}',
        b"\x01\0\0\x27" + struct.pack(">hBhiiii", 1, 0, 1, 1, 0, 0, 18) + 2 * b"\0\x01b\0\0\0\x02no",
    ],
)
def test_bytes_that_are_no_frame(frame: bytes) -> None:
    with pytest.raises(FrameError):
        decode(frame)


@pytest.mark.parametrize("length", [-1, 0, 3, 16 * 1024 * 1024 + 1, 2**31 - 1, -(2**31)])
def test_a_length_that_no_frame_has(length: int) -> None:
    with pytest.raises(FrameError, match=f"a frame of {length} bytes, not of 4 to 16777216"):
        length_of(struct.pack(">i", length))


@pytest.mark.parametrize(
    ("begin", "told"), [(b"PRI * HTTP/2.0", "--grpc-listen"), (b"GET / HTTP/1.1", "something other")]
)
def test_a_client_of_another_protocol_is_told_from_a_large_frame(begin: bytes, told: str) -> None:
    with pytest.raises(FrameError, match=told):
        length_of(begin)


ID_SECRET = b"0123456789abcdef0123456789abcdef"


def test_a_key_chooses_the_half_partition_of_kafkas_own_clients() -> None:
    """Kafka's UtilsTest has the hashes -973932308, -790332482, -985981536 and 479470107 for the first four."""
    keys = [b"21", b"foobar", b"a-little-bit-long-string", b"abc", b"", "größe".encode(), b"\xff\x80\x00\xfe\x01"]
    assert [identity.half_partition("0" * 32, key, 7) for key in keys] == [3, 0, 1, 4, 2, 4, 6]
    assert identity.half_partition("000000000000000A" + "0" * 16, None, 7) == 3


def test_the_transaction_id_is_that_of_group_key_and_fingerprint_under_the_secret() -> None:
    # printf 'orders\0K1\0ABCDEF012345' | openssl dgst -sha256 -hmac 0123456789abcdef0123456789abcdef
    made = identity.transaction_id(ID_SECRET, "orders", "K1", "ABCDEF012345")
    assert made == "03B4596F45ECC21D746BABCDEF012345"
    others = {
        identity.transaction_id(ID_SECRET, "orders", "K2", "ABCDEF012345"),
        identity.transaction_id(ID_SECRET, "orderz", "K1", "ABCDEF012345"),
        identity.transaction_id(ID_SECRET, "orders", "K1", "ABCDEF012346"),
        identity.transaction_id(ID_SECRET + b"x", "orders", "K1", "ABCDEF012345"),
        identity.delayed_id(ID_SECRET, "orders", "K1", "ABCDEF012345"),
        # The boundary between group and key cannot be shifted.
        identity.transaction_id(ID_SECRET, "ordersK", "1", "ABCDEF012345"),
    }
    assert len({one[:20] for one in others} - {made[:20]}) == 6


def test_doors_of_any_version_give_a_message_the_same_fingerprint() -> None:
    """In a rolling upgrade, a client sends again through another door. With another fingerprint, both are delivered."""
    # printf of the JSON [client, topic, flag, [[name, value], ...]] and "\\0body", by openssl as above: 8333 is 0333
    # with the highest bit set.
    given = {"UNIQ_KEY": "7F00000100001B2A0000000000000001", "KEYS": 'order "7"', "TAGS": "é", "traceparent": "00-1"}
    assert identity.fingerprint_of(ID_SECRET, "10.0.0.1", "orders", b"body", 3, given) == "8333235F8AD7"


@pytest.mark.parametrize(("partition", "offset"), [(0, 0), (1, 0), (0, 1), (77, 123_456_789), (2**15 - 1, 2**48 - 1)])
def test_half_coordinates_come_back_out_of_the_message_id(partition: int, offset: int) -> None:
    number = identity.packed(partition, offset)
    made = identity.message_id((ip_address("10.1.2.3"), 9876), number)
    # As MessageDecoder.decodeMessageId reads it: address, port, offset.
    assert (made[:8], made[8:16], len(made)) == ("0A010203", "00002694", 32)
    assert identity.unpacked(int(made[16:], 16)) == (partition, offset)
    assert number < 2**63
    assert len(identity.message_id((ip_address("::1"), 1), number)) == 56


@pytest.mark.parametrize(("partition", "offset"), [(2**15, 0), (0, 2**48), (-1, 0), (0, -1)])
def test_coordinates_that_do_not_fit_are_no_message_id(partition: int, offset: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        identity.packed(partition, offset)


def record_of(properties: dict[str, str], **more: object):
    given = {"flag": 0, "born": NOW - 1, "now": NOW, "born_host": "10.0.0.1:5", "queue_id": 2, "limits": LIMITS, **more}
    return mapping.record_of("orders", b"body", properties, **given)


def test_properties_become_headers_and_reserved_ones_get_a_prefix() -> None:
    message = record_of(
        {
            "TAGS": "t",
            "KEYS": "a b",
            "mine": "ä",
            "UNIQ_KEY": "K",
            "TRAN_MSG": "true",
            "PGROUP": "g",
            "WAIT": "true",
            "TXB_V": "9",
            "TRANSACTION_CHECK_TIMES": "7",
            "ROCKETMQ_X": "y",
            "CHECK_IMMUNITY_TIME_IN_SECONDS": "60",
        },
        flag=5,
    )
    assert dict(message.headers) == {
        "TAGS": b"t",
        "KEYS": b"a b",
        "mine": "ä".encode(),
        "ROCKETMQ_UNIQ_KEY": b"K",
        "ROCKETMQ_TXB_V": b"9",
        "ROCKETMQ_TRANSACTION_CHECK_TIMES": b"7",
        "ROCKETMQ_ROCKETMQ_X": b"y",
        "ROCKETMQ_FLAG": b"5",
        "ROCKETMQ_BORN_HOST": b"10.0.0.1:5",
    }
    assert (message.key, message.partition, message.timestamp, message.check_immunity_time) == (b"a", 2, NOW - 1, 60)
    assert mapping.properties_of(message.headers) == {
        "TAGS": "t",
        "KEYS": "a b",
        "mine": "ä",
        "UNIQ_KEY": "K",
        "TXB_V": "9",
        "TRANSACTION_CHECK_TIMES": "7",
        "ROCKETMQ_X": "y",
    }


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("订单\u30001 k2", ["订单\u30001", "k2"]),
        ("a\u00a0b  c", ["a\u00a0b", "c"]),
        (" tab\there\u2028too ", ["tab\there\u2028too"]),
        ("   ", []),
    ],
)
def test_only_a_plain_space_separates_keys(text: str, keys: list[str]) -> None:
    assert mapping.keys_of({"KEYS": text}) == keys
    assert record_of({"KEYS": text}).key == (keys[0].encode() if keys else None)


@pytest.mark.parametrize(
    ("properties", "more", "field", "expected"),
    [
        # The sharding key comes before all others.
        ({"KEYS": "a", "__SHARDINGKEY": "s"}, {}, "key", b"s"),
        ({}, {}, "key", None),
        # The time of birth is the client's, but never in the future, nor so old that Kafka might delete the record.
        ({}, {"born": -1}, "timestamp", None),
        ({}, {"born": NOW - 500}, "timestamp", NOW - 500),
        ({}, {"born": NOW + 9_000}, "timestamp", NOW),
        ({}, {"born": NOW - 86_399_999}, "timestamp", NOW - 86_399_999),
        ({}, {"born": NOW - 86_400_000}, "timestamp", None),
        # An immunity that is no number counts as absent.
        *(
            ({"CHECK_IMMUNITY_TIME_IN_SECONDS": text}, {}, "check_immunity_time", None)
            for text in ["", "-1", "5.5", "abc", "-5"]
        ),
    ],
)
def test_a_field_of_the_record(properties: dict[str, str], more: dict[str, int], field: str, expected: object) -> None:
    assert getattr(record_of(properties, **more), field) == expected


@pytest.mark.parametrize(
    ("name", "words"),
    [("REPLY_TO_CLIENT", "request and reply"), ("_SYS_MSG_PRIORITY_", "priorities"), ("__LITE_TOPIC", "lite topics")],
)
def test_what_kafka_would_deliver_otherwise_than_its_producer_expects_is_refused(name: str, words: str) -> None:
    with pytest.raises(RequestError, match=f"does not support {words}") as refused:
        record_of({name: "1"})
    # A code after which no client tries again.
    assert refused.value.code is ResponseCode.MESSAGE_ILLEGAL


TEXT = b"x" * 5_000
#: Compression and the bits of the system flag that name it.
COMPRESSIONS = {
    "ZLIB of old": (zlib.compress, 1),
    "ZLIB": (zlib.compress, 1 | 3 << 8),
    "LZ4": (lz4.frame.compress, 1 | 1 << 8),
    "ZSTD": (zstd.compress, 1 | 2 << 8),
}


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_compressed_body_is_read_up_to_the_limit(name: str) -> None:
    compress, flag = COMPRESSIONS[name]
    assert decompressed(compress(TEXT), flag, 5_000) == TEXT
    for body, remark in (
        (compress(TEXT), "more than the 4999 bytes"),
        (compress(TEXT[:100])[:-3], "truncated"),
        (compress(TEXT[:100]) + b"more", "followed by other bytes"),
        (b"none", "truncated|cannot be read"),
        (b"", "truncated"),
    ):
        with pytest.raises(RequestError, match=remark) as refused:
            decompressed(body, flag, 4_999)
        assert refused.value.code is ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_a_bomb_takes_no_more_memory_than_the_limit(name: str) -> None:
    compress, flag = COMPRESSIONS[name]
    bomb = compress(b"\0" * 50_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(RequestError, match="more than the 1000000 bytes"):
            decompressed(bomb, flag, 1_000_000)
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_compression_that_nobody_knows_is_refused() -> None:
    with pytest.raises(RequestError, match="compression type 5"):
        decompressed(TEXT, 1 | 5 << 8, 5_000)


def batched(body: bytes, properties: bytes = b"a\1b\2") -> bytes:
    content = struct.pack(">iiii", 0, 0, 3, len(body)) + body + struct.pack(">h", len(properties)) + properties
    return struct.pack(">i", 4 + len(content)) + content


def test_a_batch() -> None:
    one, two = parse_batch(batched(b"one") + batched(b"two", b""))
    assert (one.body, one.flag, one.properties) == (b"one", 3, {"a": "b"})
    assert (two.body, two.properties) == (b"two", {})
    for bad in (batched(b"one")[:-1], batched(b"one") + b"\0", struct.pack(">iiiii", 20, 0, 0, 0, -5) + b"\0\0\0\0"):
        with pytest.raises(RequestError):
            list(parse_batch(bad))


def test_a_batch_has_ten_thousand_messages_at_most() -> None:
    assert sum(1 for _ in parse_batch(batched(b"x") * 10_000)) == 10_000
    with pytest.raises(RequestError, match="at most 10000 messages: send smaller ones"):
        list(parse_batch(batched(b"x") * 10_001))


def test_a_heartbeat_has_groups_and_size_within_bounds() -> None:
    def introduced(count: int, more: str = "") -> frozenset[str]:
        groups = [{"groupName": f"{number:0200}"} for number in range(count)]
        return remoting._introduced(json.dumps({"producerDataSet": groups, "more": more}).encode())[0]

    assert len(introduced(1_000)) == 1_000
    with pytest.raises(RequestError, match="at most 1000 groups"):
        introduced(1_001)
    with pytest.raises(RequestError, match="at most 256 KiB"):
        introduced(1, "x" * 256 * 1024)


def test_properties_without_a_value_are_none() -> None:
    assert parse_properties("a\1b\2c\1\2d\2\1e\2f\1g") == {"a": "b", "f": "g"}
    with pytest.raises(RequestError):
        parse_properties("x" * 32_768)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:77", "10.0.0.1:77"),
        ("[2001:db8::1]:9", "[2001:db8::1]:9"),
        ("[::ffff:10.0.0.1]:5", "10.0.0.1:5"),
        # What is no address is nobody's.
        *((text, "0.0.0.0:0") for text in (None, "", "nobody", "1.2.3.4:99999", "1.2.3.4:x", ":1")),
    ],
)
def test_addresses(text: str | None, expected: str) -> None:
    assert text_of(parse_address(text)) == expected


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"a": ""}, ResponseCode.INVALID_PARAMETER),
        ({"e": "one"}, ResponseCode.INVALID_PARAMETER),
        ({"h": str(2**31)}, ResponseCode.INVALID_PARAMETER),
        ({"f": "4", "i": ""}, ResponseCode.MESSAGE_ILLEGAL),
        ({"m": "true"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_a_send_that_is_refused(change: dict[str, str], code: ResponseCode) -> None:
    command = of_frame("5.3.2 send")
    command.fields |= change
    with pytest.raises(RequestError) as refused:
        parse_send(command)
    assert refused.value.code is code


def test_whether_it_is_transactional_is_said_by_the_property_whatever_its_case() -> None:
    command = of_frame("5.3.2 send")
    command.fields |= {"i": "TRAN_MSG\1TRUE\2", "f": "0"}
    assert parse_send(command).is_transactional


def test_an_end_brings_the_fingerprint_back_beside_the_half_offset() -> None:
    command = of_frame("5.3.2 end")
    command.fields |= {"commitLogOffset": str(1 << 48 | 5), "tranStateTableOffset": str(0xABCDEF012345)}
    end = parse_end(command)
    assert (end.fingerprint, end.half_partition, end.half_offset, end.check_times) == ("ABCDEF012345", 1, 5, None)
    command.fields |= {"tranStateTableOffset": str(3 << 48 | 0xABCDEF012345), "fromTransactionCheck": "true"}
    assert (parse_end(command).fingerprint, parse_end(command).check_times) == ("ABCDEF012345", 3)
    # Only the answer to a check names one; and no fingerprint is that small.
    for name, value in (("fromTransactionCheck", "false"), ("tranStateTableOffset", str(2**47 - 1))):
        with pytest.raises(RequestError, match="table offset wrong"):
            parse_end(replace(command, fields={**command.fields, name: value}))


@pytest.mark.parametrize("decision", ["4", "7", "", "commit"])
def test_a_decision_that_is_none(decision: str) -> None:
    command = of_frame("5.3.2 end")
    command.fields["commitOrRollback"] = decision
    with pytest.raises(RequestError):
        parse_end(command)


def test_a_route_has_a_broker_for_each_door() -> None:
    found = json.loads(route(["a:1", "b:2"], 6))
    assert [one["brokerAddrs"] for one in found["brokerDatas"]] == [{"0": "a:1"}, {"0": "b:2"}]
    names = [one["brokerName"] for one in found["brokerDatas"]]
    assert [one["brokerName"] for one in found["queueDatas"]] == names
    assert len(set(names)) == 2
    assert {(one["perm"], one["writeQueueNums"]) for one in found["queueDatas"]} == {(6, 6)}


def test_every_refusal_is_a_sentence_of_its_own_request() -> None:
    assert refusal(4711) == " request type 4711 not supported"
    assert all(len(text) > 30 for text in REFUSALS.values())


def test_access_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    file.write_text('[[key]]\naccess_key = "ak"\nsecret_key = "a secret"\ngroups = ["mine"]\ntopics = ["own"]\n')
    access = AccessKeys(file)
    assert "a secret" not in repr(vars(access))
    fields = {"b": "2", "a": "1", "AccessKey": "ak"}
    signed = {**fields, "Signature": signature(b"a secret", fields, b"body")}
    key = access.check_request(RemotingCommand(310, 1, fields=signed, body=b"body"), "1.2.3.4:5")
    require_group(key, "mine")
    require_topic(key, "own")
    for require, limit in (
        (require_group, "speak for the group another"),
        (require_topic, "send to the topic another"),
    ):
        with pytest.raises(RequestError, match=f"the AccessKey ak may not {limit}"):
            require(key, "another")
    for wrong in ({**signed, "a": "9"}, fields, {**signed, "AccessKey": "other"}, {}, {**signed, "Signature": "ä"}):
        with pytest.raises(RequestError) as refused:
            access.check_request(RemotingCommand(310, 1, fields=wrong, body=b"body"), "1.2.3.4:5")
        assert refused.value.code is ResponseCode.NO_PERMISSION
    with pytest.raises(RequestError):
        access.check_request(RemotingCommand(310, 1, fields=signed, body=b"other"), "1.2.3.4:5")


@pytest.mark.parametrize("name", [one for one in FRAMES if one != "broker check"])
def test_a_real_client_sends_no_field_that_a_signed_request_may_not_have(name: str) -> None:
    """Those of Go, of other versions and of mqadmin: the integration tests with keys."""
    assert foreign_part(of_frame(name)) == ""


def test_what_a_signature_fits_as_well_is_refused_where_no_client_could_have_sent_it(tmp_path: Path) -> None:
    """RocketMQ signs the values alone, one after the other: those of a SEND are also those of other requests."""
    file = tmp_path / "keys.toml"
    file.write_text('[[key]]\naccess_key = "ak"\nsecret_key = "a secret"\n')
    captured = {"AccessKey": "ak", "a": "orders", "b": "Notes", "e": "0", "i": "KEYS\1Payouts\2", "n": "door"}
    made = signature(b"a secret", captured, b"pay 1,000,000 to mallory")
    forged = {
        # Its topic was a property. Fields that nobody reads hide the rest, or the body of a request that needs none.
        310: ({"a": "orders", "aa": "Notes0KEYS\1", "b": "Payouts", "ba": "\2door"}, b"pay 1,000,000 to mallory"),
        37: ({"producerGroup": "orders"}, b"Notes0KEYS\1Payouts\2doorpay 1,000,000 to mallory"),
    }
    for code, (fields, body) in forged.items():
        signed = {"AccessKey": "ak", **fields, "Signature": made}
        with pytest.raises(RequestError, match="does not cover the names of fields") as refused:
            AccessKeys(file).check_request(RemotingCommand(code, 1, fields=signed, body=body), "1.2.3.4:5")
        assert refused.value.code is ResponseCode.INVALID_PARAMETER


def test_a_line_a_minute_names_who_was_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client tries again all the time, and may name a new key each time."""
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    now, file = [1_000.0], tmp_path / "keys.toml"
    file.write_text('[[key]]\naccess_key = "ak"\nsecret_key = "a secret"\n')
    access = AccessKeys(file)

    def lines(*peers_and_keys: tuple[str, str]) -> list[tuple[str, str]]:
        with capture_logs() as logged:
            for peer, key in peers_and_keys:
                with pytest.raises(RequestError):
                    access.check_request(RemotingCommand(310, 1, fields={"AccessKey": key, "Signature": "x"}), peer)
        return [(one["peer"], one["access_key"]) for one in logged]

    assert lines(("1.2.3.4:5", "ak"), ("1.2.3.4:6", "ak"), ("1.2.3.5:5", "ak"), ("1.2.3.4:7", "")) == [
        ("1.2.3.4:5", "ak"),
        ("1.2.3.5:5", "ak"),
        ("1.2.3.4:7", ""),
    ]
    now[0] += 59
    assert lines(("1.2.3.4:5", "ak")) == []
    now[0] += 1
    assert lines(*[("1.2.3.4:5", "ak")] * 3) == [("1.2.3.4:5", "ak")]
    many = lines(*[("1.2.3.4:5", f"{number:04}" * 100) for number in range(1_000)])
    assert len(many) == 99
    assert {len(name) for _, name in many} == {80}


def test_a_signature_is_that_of_the_values_in_the_order_of_their_names() -> None:
    # printf 'ak12body' | openssl dgst -sha1 -hmac 'a secret' -binary | base64
    made = signature(b"a secret", {"b": "2", "a": "1", "AccessKey": "ak", "Signature": "x"}, b"body")
    assert made == "YLH7W/JaGU+QZaXCtSJIJoy4MeM="
    assert len(base64.b64decode(made)) == 20


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x = 1",
        "[[key]]\naccess_key = 'a'",
        "[[key]]\naccess_key = 'a'\nsecret_key = 'short'",
        "[[key]]\naccess_key = 'a'\nsecret_key = 'long enough'\ngroup = 'g'",
        "[[key]]\naccess_key = 'a'\nsecret_key = 'long enough'\ngroups = 'g'",
        "[[key]]\naccess_key = 'a'\nsecret_key = 'long enough'\ntopics = ['t', 1]",
        "[[key]]\naccess_key = 'a'\nsecret_key = 'long enough'\nadmin = 'yes'",
        "[[key]]\naccess_key='a'\nsecret_key='long enough'\n[[key]]\naccess_key='a'\nsecret_key='long enough'",
        "no toml",
    ],
)
def test_files_of_keys_that_can_not_be(tmp_path: Path, text: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(text)
    with pytest.raises(UsageError):
        AccessKeys(file)


def test_a_short_or_open_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("x" * 32 + "\n")
    file.chmod(0o600)
    assert read_secret(file, {}) == b"x" * 32
    assert read_secret(None, {"TXBRIDGE_ROCKETMQ_SECRET": "y" * 40}) == b"y" * 40
    with pytest.raises(UsageError, match="twice"):
        read_secret(file, {"TXBRIDGE_ROCKETMQ_SECRET": "y" * 40})
    file.chmod(0o644)
    with pytest.raises(UsageError, match="chmod 600"):
        read_secret(file, {})
    with pytest.raises(UsageError, match="32 are needed"):
        read_secret(None, {"TXBRIDGE_ROCKETMQ_SECRET": "x" * 31})
    with pytest.raises(UsageError, match="needs a secret"):
        read_secret(None, {})
    with pytest.raises(UsageError, match="cannot be read"):
        read_secret(tmp_path / "missing", {})


@pytest.mark.parametrize(
    "given",
    [
        {"listen": "9876"},
        {"listen": "0.0.0.0:9876"},
        {"listen": "127.0.0.1:70000"},
        {"advertised": "door"},
        {"advertised": "door:0"},
        {"advertised": ":9876"},
        {"tls_certificate": Path("x")},
        {"tls_certificate": Path("missing"), "tls_key": Path("missing")},
        {"grpc_listen": "8081"},
    ],
)
def test_options_that_can_not_work(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="--grpc-" if any("grpc" in name for name in given) else "."):
        door_options(DoorPlace(**given), {"TXBRIDGE_ROCKETMQ_SECRET": "x" * 32})


def test_the_secret_is_in_no_text_of_the_options() -> None:
    options = door_options(DoorPlace(), {"TXBRIDGE_ROCKETMQ_SECRET": "x" * 32})
    assert "xxx" not in repr(options)
    assert (options.host, options.port) == ("127.0.0.1", 9876)
