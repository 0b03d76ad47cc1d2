"""The transaction id of the front door: one for all attempts to send a message, another one for any other message."""

from __future__ import annotations

import random
import zlib
from dataclasses import astuple, dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from txbridge_rocketmq import identity
from txbridge_rocketmq.command import RemotingCommand
from txbridge_rocketmq.grpc_messages import definition, end_of, service, token
from txbridge_rocketmq.message import decompressed, encode_properties, parse_properties
from txbridge_rocketmq.requests import parse_end

SECRET = b"the secret of all doors of a test"
NAMES = st.text(max_size=6)
#: As the remoting protocol can carry them.
TEXTS = st.text(min_size=1, max_size=6).filter(lambda text: not {"\x01", "\x02"} & set(text))
PROPERTIES = st.dictionaries(TEXTS.filter(lambda name: not name.lower().startswith(("b3", "sw8"))), TEXTS, max_size=4)
FINGERPRINTS = st.integers(2**47, 2**48 - 1).map("{:012X}".format)


@dataclass(frozen=True)
class Given:
    """A message as a client gives it to a door."""

    client: str
    topic: str
    body: bytes
    flag: int
    properties: dict[str, str]

    @property
    def fingerprint(self) -> str:
        return identity.fingerprint_of(SECRET, self.client, self.topic, self.body, self.flag, self.properties)


MESSAGES = st.builds(Given, NAMES, NAMES, st.binary(max_size=6), st.integers(-(2**31), 2**31 - 1), PROPERTIES)


@given(MESSAGES, st.randoms(use_true_random=False), st.booleans(), TEXTS)
def test_every_attempt_has_the_same_fingerprint(
    message: Given, chance: random.Random, compressed: bool, span: str
) -> None:
    """In another order of properties, compressed or not, with another span of the trace."""
    entries = list(message.properties.items())
    chance.shuffle(entries)
    entries.insert(0, (chance.choice(["traceparent", "X-B3-SpanId", "sw8", "__TRACE_CONTEXT"]), span))
    body = zlib.compress(message.body) if compressed else message.body
    again = replace(
        message,
        body=decompressed(body, int(compressed), 1_000),
        properties=parse_properties(encode_properties(dict(entries))),
    )
    assert again.fingerprint == message.fingerprint


@given(MESSAGES, MESSAGES, st.lists(st.sampled_from(["client", "topic", "body", "flag", "properties"]), unique=True))
def test_anything_else_has_another(one: Given, other: Given, same: list[str]) -> None:
    other = replace(other, **{name: getattr(one, name) for name in same})
    assert (one.fingerprint == other.fingerprint) == (astuple(one) == astuple(other))


@given(NAMES, NAMES, FINGERPRINTS, st.integers(0, 2**15 - 1), st.integers(0, 2**47 - 1), st.integers(0, 99))
def test_an_end_of_either_protocol_names_the_id_again(
    group: str, key: str, fingerprint: str, partition: int, offset: int, check: int
) -> None:
    group, key = f"g{group}", f"k{key}"
    transaction = identity.transaction_id(SECRET, group, key, fingerprint)
    assert len(transaction) == 32
    assert identity.own_fingerprint(identity.transaction_id, SECRET, group, key, transaction) == fingerprint
    fields = {
        "producerGroup": group,
        "transactionId": key,
        "commitOrRollback": "8",
        "fromTransactionCheck": "true" if check else "false",
        "commitLogOffset": str(identity.packed(partition, offset)),
        "tranStateTableOffset": str(identity.packed(check, identity.table_offset(fingerprint, offset))),
    }
    request = service.EndTransactionRequest(
        topic=definition.Resource(name=group),
        message_id=key,
        transaction_id=token(transaction, partition, offset, check),
        source=definition.SOURCE_SERVER_CHECK if check else definition.SOURCE_CLIENT,
        resolution=definition.COMMIT,
    )
    for end in (parse_end(RemotingCommand(37, 1, fields=fields)), end_of(request, SECRET)):
        assert identity.transaction_id(SECRET, end.group, end.uniq_key, end.fingerprint) == transaction
        assert (end.half_partition, end.half_offset, end.check_times) == (partition, offset, check or None)


@given(FINGERPRINTS, FINGERPRINTS | st.just(""))
def test_no_other_fingerprint_leads_to_the_id(fingerprint: str, other: str) -> None:
    """A client that puts the fingerprint of a message into its own id gets nowhere."""
    transaction = identity.transaction_id(SECRET, "orders", "K1", fingerprint)
    forged = transaction[:20] + (other or "0" * 12)
    found = identity.own_fingerprint(identity.transaction_id, SECRET, "orders", "K1", forged)
    assert found == (fingerprint if other == fingerprint else None)
    for another in (("orders", "K2"), ("orderz", "K1")):
        assert identity.own_fingerprint(identity.transaction_id, SECRET, *another, transaction) is None
    assert identity.own_fingerprint(identity.delayed_id, SECRET, "orders", "K1", transaction) is None
