"""The visible records of a transaction, compared with its half message."""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

from txbridge_audit.judge.decided import DecidedCase
from txbridge_audit.judge.lazy import lazy
from txbridge_audit.protocol.mentions import CopyMention, MessagePart

#: Place of a visible record: topic, partition, offset.
Place = tuple[str, int, int]


class DeliveredCase(DecidedCase):
    """What the mentions of a transaction say about its visible records, too."""

    @lazy
    def messages(self) -> tuple[MessagePart, ...]:
        """The messages that it holds, in their order; none if it is not valid: then all of its copies are strays."""
        return self.message.messages if self.message is not None else ()

    @property
    def topics(self) -> set[str]:
        """The real topics that it asks for."""
        return {message.topic for message in self.messages}

    @lazy
    def times(self) -> list[int]:
        """The times of delivery of its messages, from the earliest on. Those with the same time are one step."""
        return sorted(message.deliver_at for message in self.messages)

    @property
    def is_stepwise(self) -> bool:
        """Whether its messages do not all have the same time of delivery."""
        return bool(self.times) and self.times[0] < self.times[-1]

    @lazy
    def delivered_to(self) -> int:
        """The last time whose messages were delivered, as parked entries and an abandon tell; -1 for none."""
        told = [parked.delivered for parked in self.transaction.parked]
        told += [discard.delivered for discard in self.transaction.discards if discard.is_abandon]
        number = max(told, default=0)
        return self.times[:number][-1] if number and self.times else -1

    @lazy
    def recorded_to(self) -> int:
        """The same, as OP tells, too: it names a commit once the last message is delivered."""
        return self.times[-1] if self.is_named("commit") and self.times else self.delivered_to

    @property
    def next_time(self) -> int | None:
        """The time of delivery of the messages that come next; None when none is left."""
        return next((time for time in self.times if time > self.recorded_to), None)

    def message_of(self, copy: CopyMention) -> MessagePart | None:
        """The message that a copy is of; None if it does not say so."""
        messages = self.messages
        if not self.is_several:
            return messages[0] if messages else None
        if copy.number is None or copy.numbers != len(messages) or copy.number > len(messages):
            return None
        return messages[copy.number - 1]

    def _asks(self, copy: CopyMention) -> MessagePart:
        message = self.message_of(copy)
        assert message is not None  # A copy at home is of a message.
        return message

    def time_of(self, copy: CopyMention) -> int:
        return self._asks(copy).deliver_at

    @lazy
    def _split_copies(self) -> tuple[list[CopyMention], list[CopyMention]]:
        message = self.message
        if message is None:
            return [], []
        home: list[CopyMention] = []
        foreign: list[CopyMention] = []
        for copy in self.transaction.copies:
            if copy.id == message.delivered_id:
                asked = self.message_of(copy)
                (home if asked is not None and copy.topic == asked.topic else foreign).append(copy)
        return home, foreign

    @property
    def home(self) -> list[CopyMention]:
        """The visible records with its id in the topics that it asks for."""
        return self._split_copies[0]

    @property
    def foreign(self) -> list[CopyMention]:
        """Those elsewhere: somebody has forwarded them."""
        return self._split_copies[1]

    @lazy
    def copies(self) -> int:
        """Number of visible copies. Of several messages: 1 if none of them is there twice, even if some are missing."""
        home = self.home
        if not home or not self.is_several:
            return len(home)
        return 2 if len(home) > len(self.messages) - len(self.unseen) else 1

    @property
    def is_visible(self) -> bool:
        return self.copies > 0

    @lazy
    def unseen(self) -> list[MessagePart]:
        """The messages that are not visible."""
        if not self.is_several:
            return [] if self.home else list(self.messages)
        seen = {copy.number for copy in self.home}
        return [message for number, message in enumerate(self.messages, 1) if number not in seen]

    @lazy
    def altered_at(self) -> Place | None:
        """The first copy whose key, value, headers or timestamp differ."""
        return _first(copy for copy in self.home if self._is_altered(copy))

    def _is_altered(self, copy: CopyMention) -> bool:
        asked, message = self._asks(copy), self.message
        dated = asked.dated or (message.born if message is not None else None)
        return copy.content != asked.content or (copy.dated is not None and copy.dated != dated)

    @lazy
    def misplaced_at(self) -> Place | None:
        """The first copy in a wrong partition. A partition that the user fixed wins over the key."""
        return _first(copy for copy in self.home if self._is_misplaced(copy))

    def _is_misplaced(self, copy: CopyMention) -> bool:
        asked = self._asks(copy)
        if asked.place is not None:
            return copy.place != asked.place
        # An altered key does not tell the right partition.
        return copy.by_key is not None and copy.content == asked.content

    @lazy
    def out_of_order_at(self) -> Place | None:
        """Of several messages, the first copy that lies behind the copy of a later one in its partition.

        A message with an earlier time of delivery may come first, and so may all of them in one Kafka transaction.

        If one of them is there twice, the first of its copies is unknown, and None is returned.
        """
        if not self.is_several or self.copies != 1:
            return None
        # By partition and time of delivery, the number of the last message so far.
        last: dict[tuple[str, int], dict[int, int]] = {}
        for copy in sorted(self.home, key=attrgetter("visible_at")):
            before, number, time = last.setdefault((copy.topic, copy.place), {}), copy.number or 0, self.time_of(copy)
            if any(other > number for its_time, other in before.items() if its_time >= time):
                return copy.visible_at
            before[time] = number
        return None


def _first(copies: Iterable[CopyMention]) -> Place | None:
    return min((copy.visible_at for copy in copies), default=None)
