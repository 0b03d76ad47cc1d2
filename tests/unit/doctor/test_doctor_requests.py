"""The doctor's requests to brokers that hang and to coordinators that do not come: they take bounded time together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from types import SimpleNamespace

import pytest
from aiokafka import errors as kafka_errors
from aiokafka.protocol.admin import ApiVersionRequest
from aiokafka.protocol.coordination import FindCoordinatorRequest
from aiokafka.protocol.transaction import AddPartitionsToTxnRequest

from txbridge.doctor import admin_requests
from txbridge.doctor.admin_requests import ask_brokers

#: What a request to a broker that hangs takes here (s), in the place of ten seconds.
HANGS_S = 0.3
COORDINATOR_NOT_AVAILABLE = 15
GRANTED = frozenset({"DESCRIBE", "WRITE"})


class Brokers:
    """Three brokers in the place of aiokafka's client. Broker n has the ids that end with n."""

    def __init__(self, *, down: int = 0, hangs: int = 0, coordinators: bool = True) -> None:
        brokers = [SimpleNamespace(nodeId=node, host="kafka", port=9090 + node) for node in (1, 2, 3)]
        self.cluster = SimpleNamespace(brokers=lambda: brokers)
        self.sent: Counter[tuple[int, str]] = Counter()
        self._down, self._hangs, self._coordinators = down, hangs, coordinators
        self._connecting = asyncio.Lock()

    async def bootstrap(self) -> None:
        pass

    async def send(self, node: int, request: object) -> object:
        self.sent[node, type(request).__name__] += 1
        if node == self._down or (node == self._hangs and not isinstance(request, ApiVersionRequest)):
            # One connection after the other is made, and ends without an answer.
            async with self._connecting:
                await asyncio.sleep(HANGS_S)
            raise kafka_errors.RequestTimedOutError
        match request:
            case ApiVersionRequest():
                return SimpleNamespace(api_versions=[])
            case FindCoordinatorRequest():
                name = request._coordinator_key
                if self._coordinators:
                    return SimpleNamespace(error_code=0, coordinator_id=int(name[-1]))
                return SimpleNamespace(error_code=COORDINATOR_NOT_AVAILABLE, coordinator_id=-1)
            case AddPartitionsToTxnRequest():
                return SimpleNamespace(errors=[("half", [(0, kafka_errors.InvalidProducerIdMapping.errno)])])
        raise kafka_errors.KafkaError("not here")


def asked(monkeypatch: pytest.MonkeyPatch, ids: list[str], **kind: object):
    made: list[Brokers] = []

    def make(*_: object) -> Brokers:
        made.append(Brokers(**kind))  # type: ignore[arg-type]
        return made[0]

    monkeypatch.setattr(admin_requests, "aiokafka_client", make)
    since = time.monotonic()
    answers = ask_brokers({}, ids)
    return answers, made[0].sent, time.monotonic() - since


def test_rights_on_transactional_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [f"half@{number}" for number in (1, 2, 3)]
    answers, sent, _ = asked(monkeypatch, ids)
    assert answers.id_rights == dict.fromkeys(ids, GRANTED)
    assert sum(count for (_, name), count in sent.items() if name == "FindCoordinatorRequest") == 3


@pytest.mark.parametrize("down", [1, 2])
def test_a_broker_that_does_not_answer_is_asked_once(monkeypatch: pytest.MonkeyPatch, down: int) -> None:
    ids = [f"half@{number}" for number in range(1, 101) if number % 10 in {1, 2, 3}]
    answers, sent, _ = asked(monkeypatch, ids, down=down)
    assert answers.unreachable == {down: f"kafka:909{down}"}
    assert {count for (node, _), count in sent.items() if node == down} == {1}
    lost = f"NodeNotReadyError: broker {down} does not answer"
    assert answers.id_rights == {one: lost if one.endswith(str(down)) else GRANTED for one in ids}


def test_a_broker_that_hangs_meanwhile_keeps_the_doctor_for_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_requests, "_ALL_REQUESTS_S", 5 * HANGS_S)
    ids = [f"half@{number}" for number in range(1, 101) if number % 10 in {1, 2}]
    answers, _, seconds = asked(monkeypatch, ids, hangs=2)
    assert answers.id_rights == {one: GRANTED if one.endswith("1") else "REQUEST_TIMED_OUT" for one in ids}
    assert seconds < 20 * HANGS_S


def test_coordinators_that_do_not_come_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_requests, "_COORDINATORS_COME_S", 0.5)
    ids = [f"half@{number}" for number in range(100)]
    answers, _, seconds = asked(monkeypatch, ids, coordinators=False)
    assert set(answers.id_rights.values()) == {"COORDINATOR_NOT_AVAILABLE"}
    assert seconds < 10
