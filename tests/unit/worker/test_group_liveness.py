"""GroupLiveness: an answer counts together with its time."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.support.manual_time import ManualTime
from txbridge.core.names import Names
from txbridge.kafka.group_membership import GroupMembership
from txbridge.worker.gates.group_liveness import GroupLiveness

CHECK = Names().check("g")


class Membership:
    """Hands out futures that the test completes."""

    def __init__(self):
        self.asked = []

    def ask(self, groups):
        answers = {group: Future() for group in groups}
        self.asked.append(answers)
        return answers

    def abandon_unanswered(self) -> None:
        self.looked = True

    def answer(self, members: int) -> None:
        self.asked[-1][CHECK].set_result(SimpleNamespace(members=[None] * members))


def ask(groups, *names):
    names = list(names or ["g"])
    return groups.attend_groups(lambda limit: names[:limit], lambda name: name in names)


def directory():
    time, membership = ManualTime(), Membership()
    return time, membership, GroupLiveness(membership, Names(), time)


class SilentAdmin:
    """An AdminClient whose coordinator never answers, until the test does."""

    def __init__(self):
        self.answers = {}

    def poll(self, _seconds): ...

    def describe_consumer_groups(self, groups, request_timeout, **_):
        assert request_timeout == 3_600, "shorter ones would time out in librdkafka, which aborts the process then"
        self.answers = {group: Future() for group in groups}
        return self.answers


class Clients(list[SilentAdmin]):
    """Connects one client after the other."""

    def __call__(self) -> SilentAdmin:
        self.append(SilentAdmin())
        return self[-1]


def test_a_group_that_is_being_asked_about_is_not_asked_about_again():
    admin = SilentAdmin()
    membership = GroupMembership(lambda: admin, ManualTime())
    first = membership.ask(["g"])["g"]
    assert membership.ask(["g"])["g"] is first
    admin.answers["g"].set_exception(KafkaException(KafkaError(KafkaError.GROUP_ID_NOT_FOUND)))
    with pytest.raises(KafkaException):
        first.result(0)
    assert membership.ask(["g"])["g"] is not first


def test_p8_in_an_outage_clients_are_replaced_every_few_seconds_only():
    time, clients = ManualTime(), Clients()
    groups = GroupLiveness(GroupMembership(clients, time), Names(), time)
    for _ in range(300):
        time.seconds += 0.1
        ask(groups)
        answer = clients[-1].answers[CHECK]
        if not answer.done():
            answer.set_exception(KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE)))
    assert 5 <= len(clients) <= 11


@pytest.mark.parametrize("code", [KafkaError.GROUP_ID_NOT_FOUND, KafkaError.GROUP_AUTHORIZATION_FAILED])
def test_p8_a_group_that_is_not_there_or_hidden_is_no_reason_for_another_client(code):
    time, clients = ManualTime(), Clients()
    groups = GroupLiveness(GroupMembership(clients, time), Names(), time)
    for _ in range(30):
        time.seconds += 1.1
        ask(groups)
        clients[-1].answers[CHECK].set_exception(KafkaException(KafkaError(code)))
    assert len(clients) == 1
    assert not groups.is_alive("g")
    hidden = code == KafkaError.GROUP_AUTHORIZATION_FAILED
    assert (groups.why_unknown("g") is not None) is hidden


def test_p6_a_failure_to_answer_says_nothing_about_who_is_alive():
    time, membership, groups = directory()
    ask(groups)
    membership.answer(1)
    assert groups.is_alive("g")
    assert groups.why_unknown("g") is None
    time.seconds += 1.5
    ask(groups)
    membership.asked[-1][CHECK].set_exception(KafkaException(KafkaError(KafkaError.NOT_COORDINATOR, "not me")))
    assert groups.is_alive("g")
    assert groups.why_unknown("g") == "not me"
    time.seconds += 0.6
    assert not groups.is_alive("g"), "by now the last answer is too old"


def test_p8_an_answer_that_nobody_could_look_at_is_believed_at_the_first_look():
    # Kafka transactions of three seconds each: every answer was too old when it was looked at, and checks stood still.
    time, membership, groups = directory()
    ask(groups)
    membership.answer(1)
    time.seconds += 3
    assert groups.is_alive("g")
    time.seconds += 1.1
    assert not groups.is_alive("g")


def test_p6_an_answer_that_waited_for_long_is_not_believed():
    time, membership, groups = directory()
    ask(groups)
    membership.answer(1)
    time.seconds += 10.1
    assert not groups.is_alive("g")
