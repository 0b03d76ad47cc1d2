"""The table of rights in docs/security.md, which is the one that the doctor checks."""

from __future__ import annotations

import pytest

from tests.support.secure_kafka import documented
from txbridge.core.names import Names
from txbridge.kafka.acl import Role, rights


@pytest.mark.parametrize("role", list(Role))
def test_documented_rights_are_those_of_the_code(role: Role) -> None:
    names = {"<ns>.": "staging.", "<group>": "orders", "<real topic>": "orders.placed"}
    expected = rights(role, Names("staging"), group="orders", real_topic="orders.placed")
    assert documented(role.value, names) == expected


def test_a_right_reads_as_a_person_would_say_it() -> None:
    fence = rights(Role.WORKER, Names())[-1]
    assert str(fence) == "WRITE on transactional id RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/*"
