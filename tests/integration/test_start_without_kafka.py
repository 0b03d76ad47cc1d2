"""Services of all APIs that start while a real Kafka is down: they are not ready, and begin when it comes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.apis import APIS
from tests.support.harness import Bridge, at_this_load, eventually
from tests.support.listeners import COMMIT, UNKNOWN, Answers
from txbridge import Message, PrepareError


def test_services_start_without_kafka_and_answer_checks_when_it_comes(own_kafka):
    with Bridge(own_kafka.bootstrap_servers, "started before Kafka") as bridge:
        settings, topic = {"bootstrap.servers": bridge.bootstrap_servers}, bridge.create_topic("orders")

        def make(api, listener, **options):
            return api("orders", listener, settings, namespace=bridge.namespace, **options)

        # A message that only a check can decide.
        with make(APIS[0], Answers(UNKNOWN)) as earlier:
            earlier.send(Message(topic, b"asked about"))
        own_kafka.kill()
        listener = Answers(COMMIT, COMMIT)
        producers = [make(api, listener, start_without_kafka=True) for api in APIS]
        try:
            began = time.monotonic()
            with ThreadPoolExecutor(len(producers)) as threads:
                list(threads.map(lambda producer: producer.start(), producers))
            assert time.monotonic() - began < at_this_load(10)
            for producer in producers:
                assert not producer.is_connected
                began = time.monotonic()
                with pytest.raises(PrepareError, match="nothing was sent: Kafka has not answered since"):
                    producer.send(Message(topic, b"v"))
                assert time.monotonic() - began < at_this_load(1)
            assert listener.executed == []
            own_kafka.restart()
            bridge.worker(transaction_timeout=1_000)
            for number, producer in enumerate(producers):
                eventually(lambda producer=producer: producer.is_connected, 60)
                producer.send(Message(topic, b"%d" % number)).wait(60)
            bridge.wait_visible(topic, [b"asked about", b"0", b"1", b"2"], 60)
        finally:
            for producer in producers:
                producer.close()
                producer.end_loop()
        assert [message.value for message in listener.checked] == [b"asked about"]
        assert not any(producer.is_connected for producer in producers)
