"""librdkafka keeps the name of a missing topic forever once `list_topics` has named it, and gets slower with each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Calls that name a topic, and why that topic is no name that a client or a message brings.
NAMED = {
    "connectors/txbridge_rocketmq/door_process.py": "HALF",
    "txbridge/client/checks/consumer.py": "HALF, and the group's own check topic",
    "txbridge/client/kafka/producer.py": "HALF or END",
    "txbridge/kafka/admin.py": "HALF, in a command",
    "txbridge/kafka/fence.py": "HALF",
    "txbridge/kafka/partition_reader.py": "the reader's own topic",
    "txbridge/operations/history.py": "in a client of one look, which ends after it",
    "txbridge/testing/sandbox.py": "a topic that a test names",
}


def nodes_of(*folders: str) -> Iterator[tuple[str, ast.AST]]:
    """Each node of the syntax trees below these folders, with the path of its file."""
    for folder in folders:
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            yield from ((path, node) for node in ast.walk(ast.parse(file.read_text())))


def test_list_topics_names_only_topics_of_ours() -> None:
    """`describe_topics` leaves nothing behind."""
    found = set()
    for path, node in nodes_of("txbridge", "connectors", "spark"):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            names_a_topic = node.args or any(keyword.arg == "topic" for keyword in node.keywords)
            if node.func.attr == "list_topics" and names_a_topic:
                found.add(path)
    assert found == set(NAMED)


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
