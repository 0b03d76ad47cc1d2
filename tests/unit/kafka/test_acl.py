"""The rights of each role: one table in the code, on the page, and in what `txbridge topics acls` prints."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from tests.support.secure_kafka import print_acls, printed
from tests.support.source import ROOT
from txbridge.cli.app import app
from txbridge.core.names import Names
from txbridge.errors import UsageError
from txbridge.kafka.acl import Pattern, ResourceKind, Right, Role, list_rights, rights


def documented(role: Role) -> list[Right]:
    """The rights of a role as docs/security.md lists them, with names for the placeholders."""
    found = []
    for line in (ROOT / "docs" / "security.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) != 5 or cells[0] != role.value:
            continue
        kind, operations = ResourceKind[cells[1]], tuple(cells[3].split(", "))
        names = cells[2].replace("<ns>.", "staging.").replace("<group>", "orders")
        for name in names.replace("<real topic>", "orders.placed").replace("`", "").split(", "):
            pattern = Pattern.PREFIXED if name.endswith("*") else Pattern.LITERAL
            found.append(Right(kind, name.rstrip("*"), pattern, operations))
    return found


@pytest.mark.parametrize("role", list(Role))
def test_page_and_command_show_the_rights_of_the_code(role: Role) -> None:
    expected = rights(role, Names("staging"), group="orders", real_topic="orders.placed")
    assert documented(role) == expected
    assert printed(role.value, "staging", "orders", "orders.placed") == expected
    text = "".join(print_acls(role.value, "staging", "orders", "orders.placed", "--format", "json"))
    assert json.loads(text)["acls"] == [one.as_record() for one in expected]


def test_each_line_can_be_pasted() -> None:
    begin = "kafka-acls.sh --bootstrap-server kafka:1 --add --allow-principal 'User:CN=orders,O=A & B' --operation Read"
    assert print_acls("client", "", "orders", "", "--principal", "User:CN=orders,O=A & B")[2:] == [
        f"{begin} --operation DescribeConfigs --topic RMQ_SYS_TRANS_CHECK.orders",
        f"{begin} --group RMQ_SYS_TRANS_CHECK.orders",
    ]
    assert print_acls("doctor", "", "", "")[0].endswith("--operation Describe --operation DescribeConfigs --cluster")
    assert print_acls("follower", "", "", "")[1].endswith(
        "--transactional-id TRANS_AUDIT_VIOLATIONS_TOPIC- --resource-pattern-type prefixed"
    )


def test_several_groups_and_topics_add_what_is_theirs_alone() -> None:
    assert len(list_rights(Role.CLIENT, Names(), ["a", "b"], [])) == 6
    assert len(list_rights(Role.RELAY, Names(), [], ["x", "y"])) == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--role", "client", "--principal", "User:x"], "--role client needs a --group"),
        (["--role", "worker", "--principal", "User:x"], "--role worker needs a --real-topic"),
        (["--role", "relay", "--principal", "User:x", "--group", "a"], "--role relay takes no --group"),
        (["--role", "client", "--principal", "User:x", "--group", "a b"], "--group 'a b' cannot be such a name"),
        (["--role", "client", "--principal", "orders", "--group", "a"], "--principal takes TYPE:NAME"),
    ],
)
def test_a_mistake_prints_no_line(words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["topics", "acls", "--bootstrap-servers", "kafka:1", *words])
    assert done.stdout == ""
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)


def test_a_right_reads_as_a_person_would_say_it() -> None:
    fence = rights(Role.WORKER, Names())[-1]
    assert str(fence) == "WRITE on transactional id RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/*"
