"""RocketMQ's official Python client behind a pipe, like GrpcClient.java for Java.

Arguments: the addresses of the doors, the topics that the producer names at its start, an AccessKey with its secret,
and whether it uses TLS. Commands and answers are lines of fields between tabs; an answer begins with "done" or "error".
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SendReceipt,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

ANSWERS: dict[str, list[str]] = {}
ASKED: Counter[str] = Counter()
CHECKS: list[str] = []
SENT: list[str] = []
#: Long enough for a loaded machine (s); the client's default is 3.
TIMEOUT_S = 20
DECISIONS = {"commit": TransactionResolution.COMMIT, "rollback": TransactionResolution.ROLLBACK}


class Checker(TransactionChecker):
    def check(self, message: Message) -> TransactionResolution:
        text = message.properties["text"]
        # The answer about the message of another client stands in its text: "17/commit".
        answers = ANSWERS.get(text, [text.partition("/")[2]])
        answer = answers[min(ASKED[text], len(answers) - 1)]
        ASKED[text] += 1
        keys = " ".join(sorted(message.keys))
        CHECKS.append(
            "|".join(
                str(one)
                for one in (
                    text,
                    message.message_id,
                    message.topic,
                    message.tag or "",
                    keys,
                    message.properties.get("p", ""),
                    len(message.body),
                    message.corrupted,
                    message.born_host.rpartition(":")[0],
                )
            )
        )
        return DECISIONS.get(answer, TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED)


def message_of(topic: str, text: str, tag: str = "", keys: str = "", p: str = "", **fields: object) -> Message:
    """Make a message; the text "x*1000" makes a body of a thousand letters x."""
    letters, _, times = text.partition("*")
    message = Message()
    message.topic, message.body = topic, (letters * int(times or 1)).encode()
    message.add_property("text", text)
    if tag:
        message.tag = tag
    for key in keys.split():
        message.keys = key
    if p:
        message.add_property("p", p)
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def told(receipt: SendReceipt) -> str:
    return str(receipt.message_id)


def transaction(
    producer: Producer, topic: str, text: str, answer: str, checks: str, tag: str, keys: str, p: str
) -> str:
    ANSWERS[text] = checks.split(",")
    begun = producer.begin_transaction()
    receipt = producer.send(message_of(topic, text, tag, keys, p), begun)
    # What follows may fail; the local transaction has decided all the same.
    SENT.append(f"{told(receipt)}|{text}")
    if answer == "commit":
        begun.commit()
    elif answer == "rollback":
        begun.rollback()
    return told(receipt)


def obey(producer: Producer, configuration: ClientConfiguration, command: list[str]) -> str:
    name, arguments = command[0], command[1:]
    if name == "transaction":
        return transaction(producer, *arguments)
    if name == "plain":
        return told(producer.send(message_of(*arguments)))
    if name == "fifo":
        return told(producer.send(message_of(*arguments[:2], message_group=arguments[2])))
    if name == "delayed":
        topic, text, seconds = arguments
        return told(producer.send(message_of(topic, text, delivery_timestamp=int(time.time()) + int(seconds))))
    if name == "several":
        topic, answer, *texts = arguments
        with ThreadPoolExecutor(8) as threads:
            sent = [threads.submit(transaction, producer, topic, one, answer, answer, "", "", "") for one in texts]
            return "\t".join(one.result() for one in sent)
    if name == "sent":
        return ";".join(SENT)
    if name == "checks":
        return ";".join(CHECKS)
    if name == "consume":
        consumer = SimpleConsumer(configuration, "consumers", {arguments[0]: FilterExpression()})
        consumer.startup()
        try:
            return str(consumer.receive(1, 10))
        finally:
            consumer.shutdown()
    raise ValueError(f"no such command: {command}")


def main() -> None:
    addresses, topics, access_key, secret, tls = sys.argv[1:]
    configuration = ClientConfiguration(addresses, Credentials(access_key, secret), request_timeout=TIMEOUT_S)
    named = [one for one in topics.split(",") if one]
    producer = Producer(configuration, named, Checker(), tls_enable=tls == "true")
    producer.startup()
    for line in sys.stdin:
        try:
            answer = f"done\t{obey(producer, configuration, line.rstrip(chr(10)).split(chr(9)))}"
        except Exception as error:
            answer = f"error\t{type(error).__name__}\t{error}"
        print(answer.replace("\n", " "), flush=True)
    # The client's threads go on for a while after its shutdown; the process does not wait for them.
    threading.Thread(target=producer.shutdown, daemon=True).start()


if __name__ == "__main__":
    main()
