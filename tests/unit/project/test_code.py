"""Calls that the code must not contain, because each has caused a defect that no other test would show."""

from __future__ import annotations

import ast

from tests.support.source import ROOT, calls_in, nodes_of, tree_of

#: Calls of list_topics that name a topic, and why that topic is no name that a client or a message brings.
NAMED = {
    "connectors/txbridge_sqlalchemy/half_settling.py": "HALF",
    "txbridge/client/checks/consumer.py": "HALF, and the group's own check topic",
    "txbridge/client/kafka/connection.py": "HALF or END",
    "txbridge/kafka/admin.py": "HALF or OUTBOX",
    "txbridge/kafka/fenced_producer.py": "HALF",
    "txbridge/kafka/partition_reader.py": "the reader's own topic",
    "txbridge/testing/sandbox.py": "a topic that a test names",
}
#: Each makes a consumer for one thread.
CONSUMERS = {
    "connectors/txbridge_rocketmq/door_process.py",
    "txbridge/client/checks/consumer.py",
    "txbridge/client/flow/cancellation.py",
    "txbridge/client/runtime.py",
    "txbridge/kafka/environment.py",
    "txbridge/kafka/partition_reader.py",
}
#: Threads without a step of the application's, and why.
WITHOUT_USERS = {
    "connectors/txbridge_sqlalchemy/relay.py _listen": "without it the relay polls",
    "txbridge/client/async_bridge.py close": "a client that nobody has",
    "txbridge/client/kafka/topic_watch.py _look_at_topic": "a question to Kafka",
}
#: Without arguments these follow Unicode, in which 25 characters count as spaces.
BY_UNICODE = {"split", "rsplit", "strip", "lstrip", "rstrip", "splitlines", "isspace", "isdecimal", "isnumeric"}
#: A person writes what is read here: a file with the secret, and options of the command.
OF_PERSONS = "connectors/txbridge_rocketmq/door_options.py"


def test_list_topics_names_only_topics_of_ours() -> None:
    """librdkafka keeps the name of a missing topic forever once `list_topics` has named it, and gets slower with each.

    `describe_topics` leaves nothing behind.
    """
    found = {
        path
        for path, call in calls_in("txbridge", "connectors", "spark")
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "list_topics"
        and (call.args or any(keyword.arg == "topic" for keyword in call.keywords))
    }
    assert found == set(NAMED)


def test_each_consumer_belongs_to_one_thread() -> None:
    """Calls of one Consumer wait for each other (confluent-kafka 2.16), those of an AdminClient or a Producer do not.

    So what several threads ask is asked by another client: a frozen broker would delay all of them.
    """
    found = {
        path
        for path, call in calls_in("txbridge", "connectors")
        if ast.unparse(call.func).endswith((".consumer", "Consumer"))
        or any(ast.unparse(argument) == "Consumer" for argument in call.args)
    }
    assert found == CONSUMERS


def test_an_admin_client_has_a_name_until_its_answers_are_there() -> None:
    """Python collects a client without a name as soon as the request is sent, and no answer ever comes.

    `list_topics` returns with its answer.
    """
    found = [
        f"{path}:{node.lineno}"
        for path, node in nodes_of("txbridge", "connectors", "spark", "tests", "examples")
        if isinstance(node, ast.Attribute)
        and node.attr != "list_topics"
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func).lower().endswith(("adminclient", "admin_client", "quiet_admin"))
    ]
    assert found == []


def test_what_the_application_raises_ends_no_thread() -> None:
    """Also SystemExit, of which a thread says nothing. Futures and Kafka clients call its code back."""
    found = set()
    for path, call in calls_in("txbridge/client", "connectors"):
        name = ast.unparse(call.func)
        assert name != "Future" or path == "txbridge/client/flow/pipeline.py", path
        assert name != "kafka_config.create" or path == "txbridge/client/kafka/connection.py"
        if name == "threading.Thread":
            target = ast.unparse(next(one.value for one in call.keywords if one.arg == "target")).rpartition(".")[2]
            functions = [one for one in ast.walk(tree_of(ROOT / path)) if isinstance(one, ast.FunctionDef)]
            body = "".join(ast.unparse(one) for one in functions if one.name == target)
            if "contained(" not in body and "except BaseException" not in body:
                found.add(f"{path} {target}")
    assert found == set(WITHOUT_USERS)


def test_text_that_others_have_written_is_split_by_named_characters() -> None:
    found = [
        f"{path}:{call.lineno}"
        for path, call in calls_in("txbridge/core", "connectors/txbridge_rocketmq")
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in BY_UNICODE
        and not call.args
        and path != OF_PERSONS
    ]
    assert found == []
