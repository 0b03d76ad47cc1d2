"""Gate of checks: groups that nobody is a member of, as Kafka says."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaException

from txbridge.core.names import Names
from txbridge.kafka.environment import OUTSIDE, Outside
from txbridge.kafka.errors import is_denied, missing_right
from txbridge.kafka.group_membership import GroupMembership, is_about_the_group
from txbridge.log import get_logger

#: A group is asked about this often while checks of it are due.
_ASK_EVERY_S = 1.0
#: An answer is believed this long. A dead member stays one for its session time-out anyway.
_FRESH_S = 2.0
#: The same for an answer that arrived during a Kafka transaction, which delays the first look at it. Up to
#: _FIRST_LOOK_S after its arrival, it is believed for _LOOKED_AT_S from that look on. Otherwise a partition whose Kafka
#: transactions take more than two seconds would never send a check.
_FIRST_LOOK_S = 10.0
_LOOKED_AT_S = 1.0
#: Most groups asked about at the same time: each costs two requests, and a client can invent groups. Some of these
#: places are kept for groups that are not known to be alive.
_MOST_ASKED = 50
_FOR_OTHERS = 20
#: Most hidden groups that are logged by name; a client may have invented the others.
_MOST_TOLD = 100
#: Time for which a group that was alive is remembered: it is asked about as soon as one of its checks is due again, and
#: a message is checked every 30 s. Their number is limited, because each is looked at in every round.
_REMEMBERED_S = 60.0
_MOST_REMEMBERED = 1_000

_log = get_logger("txbridge.worker")


@dataclass(slots=True)
class _Group:
    outside: Outside
    asked: float = float("-inf")
    answer: Future[Any] | None = None
    #: Monotonic time (s) at which the last answer arrived.
    arrived: float = float("-inf")
    #: Whether the last answer named a member, and the monotonic time (s) until which that is believed.
    alive: bool = False
    believed_until: float = float("-inf")
    #: Reason why the members are not known; None once Kafka has named them.
    unknown: str | None = "Kafka has not answered yet"

    def mark_arrived(self, _: Future[Any]) -> None:
        self.arrived = self.outside.monotonic()

    def is_remembered(self, now: float) -> bool:
        """Whether the group was alive recently, or is unknown although Kafka was asked about it."""
        return self.unknown is not None or (self.alive and self.believed_until + _REMEMBERED_S > now)


class GroupLiveness:
    """Answers from memory and asks Kafka in the background: a slow coordinator delays no decision. Not thread-safe."""

    def __init__(self, membership: GroupMembership, names: Names, outside: Outside = OUTSIDE) -> None:
        self._outside = outside
        self._membership = membership
        self._names = names
        self._groups: dict[str, _Group] = {}
        self._told: set[str] = set()

    def attend_groups(self, due: Callable[[int], list[str]], is_due: Callable[[str], bool]) -> list[str]:
        """Ask about some groups that have a check due, and return the groups to look at in this round.

        They are the groups that were alive recently, and a few others: `due` returns so many, different ones each time.
        So a round takes no longer, however many groups are dead. Answers that arrived meanwhile are taken in. Raises
        KafkaException.
        """
        now = self._outside.monotonic()
        self._membership.abandon_unanswered()
        for name, group in self._groups.items():
            self._take_in(name, group)
        self._forget(now)
        attended = [name for name in self._groups if is_due(name)]
        room = _MOST_ASKED - sum(group.answer is not None for group in self._groups.values())
        idle = [name for name in attended if self._groups[name].answer is None]
        old = [name for name in idle if self._groups[name].asked + _ASK_EVERY_S <= now]
        old.sort(key=lambda name: self._groups[name].asked)
        asked = old[: max(0, room - _FOR_OTHERS)]
        for name in due(max(0, room - len(asked))):
            # A group that was asked about within the last second is among them already.
            if name not in self._groups:
                self._groups[name] = _Group(self._outside)
                asked.append(name)
                attended.append(name)
        self._ask_kafka(asked, now)
        return attended

    def _forget(self, now: float) -> None:
        """Keep groups with an open question, groups asked about within the last second, and remembered ones."""
        self._groups = {
            name: group
            for name, group in self._groups.items()
            if group.answer is not None or group.asked + _ASK_EVERY_S > now or group.is_remembered(now)
        }
        surplus = len(self._groups) - _MOST_REMEMBERED
        if surplus > 0:
            idle = [(group.alive, group.asked, name) for name, group in self._groups.items() if group.answer is None]
            for _, _, name in sorted(idle)[:surplus]:
                del self._groups[name]

    def _ask_kafka(self, names: list[str], now: float) -> None:
        if not names:
            return
        answers = self._membership.ask([self._names.check(name) for name in names])
        for name in names:
            group, answer = self._groups[name], answers[self._names.check(name)]
            group.asked, group.answer = now, answer
            # The age of an answer counts from its arrival. The first look at it may come much later.
            answer.add_done_callback(group.mark_arrived)

    def is_alive(self, name: str) -> bool:
        """Whether the group had a member when Kafka last answered. Without an answer it is False: no check is lost."""
        group = self._groups.get(name)
        if group is not None:
            self._take_in(name, group)
        return group is not None and group.alive and group.believed_until > self._outside.monotonic()

    def why_unknown(self, name: str) -> str | None:
        """Reason why Kafka has not named the members of this group, if it was asked; None when it has."""
        group = self._groups.get(name)
        return None if group is None else group.unknown

    def _take_in(self, name: str, group: _Group) -> None:
        answer = group.answer
        if answer is None or not answer.done():
            return
        group.answer = None
        try:
            group.alive = len(answer.result().members) > 0
        except KafkaException as failure:
            if not is_about_the_group(failure):
                # The error says nothing about the group. The last answer stays, and expires.
                group.unknown = failure.args[0].str()
                return
            group.alive = False
            self._note_denied(name, group, failure)
        else:
            group.unknown = None
            self._told.discard(name)
        # An answer and its time go together: a new one must not make an old "alive" look fresh.
        now = self._outside.monotonic()
        group.believed_until = group.arrived + _FRESH_S
        if group.arrived + _FIRST_LOOK_S > now:
            group.believed_until = max(group.believed_until, now + _LOOKED_AT_S)

    def _note_denied(self, name: str, group: _Group, failure: KafkaException) -> None:
        if not is_denied(failure.args[0]):
            # There is no such group.
            group.unknown = None
            return
        group.unknown = right = missing_right("DESCRIBE", f"group {self._names.check(name)}")
        # The group would look dead, and nothing would show why it is never checked.
        if name not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(name)
            _log.warning("group_hidden", group=name, error=right)
