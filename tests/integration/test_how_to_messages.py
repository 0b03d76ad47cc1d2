"""The programs of the how-to pages about the content of messages, each delivered by a real worker and read again."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys

from tests.support.harness import eventually
from tests.support.listeners import Commits
from tests.support.schema_registry import schema_registry
from tests.support.source import programs_of
from txbridge import Message, TransactionProducer

EVENTS = ("binary.py", "structured.py")

#: Module that `protoc --python_out=.` generates from the page's orders.proto, written without protoc.
ORDERS_PB2 = """
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

file = descriptor_pb2.FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
message = file.message_type.add(name="OrderPlaced")
message.field.add(name="number", number=1, type=9, label=1)
message.field.add(name="amount", number=2, type=3, label=1)
pool = descriptor_pool.Default()
pool.Add(file)
OrderPlaced = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.OrderPlaced"))
"""
#: Code that makes a message or reads a value, in a process of its own because a test should not import the programs.
MAKE = """
import base64, json
made = order_placed({order})
print(json.dumps([base64.b64encode(made.value).decode(), made.key.decode(),
                  [[name, value.decode()] for name, value in made.headers]]))
"""
READ = """
import base64
order = order_of({topic!r}, base64.b64decode({value!r}))
print(*(order.values() if isinstance(order, dict) else (order.number, order.amount)))
"""


def run(program, folder):
    # Libraries of the serializers print deprecation warnings about others.
    words = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def make(program, folder, topic, order='"A1", 250'):
    value, key, headers = json.loads(run(program + MAKE.format(order=order), folder))
    return Message(topic, base64.b64decode(value), key=key, headers=headers)


def deliver(bridge, messages):
    """Send these messages and return their delivered records by topic."""
    bridge.worker()
    settings = {"bootstrap.servers": bridge.bootstrap_servers}
    with TransactionProducer("shop", Commits(), settings, namespace=bridge.namespace) as producer:
        for message in messages:
            producer.send_message_in_transaction(message)
    topics = {message.topic for message in messages}
    eventually(lambda: all(bridge.visible(topic).total() == 1 for topic in topics), 60)
    return {topic: bridge.read(topic)[0] for topic in topics}


def test_the_programs_about_schemas(bridge, tmp_path):
    found = programs_of("how-to/consumers.md")
    assert set(found) == {*(f"{name}_orders.py" for name in ("pydantic", "avro", "json", "protobuf")), *EVENTS}
    for other in ("json_orders.py", "protobuf_orders.py"):
        found[other] = found["avro_orders.py"] + found[other]  # its lines take the place of Avro's
    (tmp_path / "orders_pb2.py").write_text(ORDERS_PB2, "utf-8")
    with schema_registry() as (url, subjects):
        with_registry = {
            # A topic for each, because the subject's name follows from it.
            name: found[name]
            .replace("http://127.0.0.1:8081", url)
            .replace("orders.placed", bridge.create_topic(name[:4]))
            for name in ("avro_orders.py", "json_orders.py", "protobuf_orders.py")
        }
        topics = {name: re.search('TOPIC = "(.*)"', program)[1] for name, program in with_registry.items()}
        records = deliver(bridge, [make(with_registry[name], tmp_path, topics[name]) for name in with_registry])
        assert sorted(subjects) == sorted(f"{topic}-value" for topic in topics.values())
        for name, program in with_registry.items():
            record = records[topics[name]]
            # The value is unchanged: it begins with the magic byte of Confluent's framing.
            assert record.value()[:1] == b"\0"
            assert record.key() == b"A1"
            value = base64.b64encode(record.value()).decode()
            assert run(program + READ.format(topic=topics[name], value=value), tmp_path) == "A1 250"
        refused = with_registry["json_orders.py"] + "\nfrom confluent_kafka.serialization import SerializationError\n"
        refused += "try:\n    order_placed('A1', -1)\nexcept SerializationError as error:\n    print('refused')\n"
        assert run(refused, tmp_path) == "refused"


def test_the_programs_about_pydantic_and_cloudevents(bridge, tmp_path):
    events = programs_of("how-to/consumers.md")
    pydantic = events["pydantic_orders.py"]
    topics = [bridge.create_topic(name) for name in ("pydantic", "binary", "structured")]
    messages = [
        make(pydantic, tmp_path, topics[0], 'OrderPlaced(number="A1", amount=250)'),
        make(events["binary.py"], tmp_path, topics[1]),
        make(events["structured.py"], tmp_path, topics[2]),
    ]
    records = deliver(bridge, messages)
    plain, binary, structured = (records[topic] for topic in topics)
    again = f"print(OrderPlaced.model_validate_json({plain.value()!r}))"
    assert run(pydantic + again, tmp_path) == "number='A1' amount=250"
    assert dict(plain.headers())["content-type"] == b"application/json"
    headers = dict(binary.headers())
    assert json.loads(binary.value()) == {"number": "A1", "amount": 250}
    # Attributes that the binding requires for every event.
    assert {name: headers[name] for name in ("ce_specversion", "ce_source", "ce_type")} == {
        "ce_specversion": b"1.0",
        "ce_source": b"/orders",
        "ce_type": b"com.example.order.placed",
    }
    assert headers["ce_id"]
    event = json.loads(structured.value())
    assert dict(structured.headers())["content-type"] == b"application/cloudevents+json"
    assert (event["specversion"], event["type"], event["data"]["number"]) == ("1.0", "com.example.order.placed", "A1")
