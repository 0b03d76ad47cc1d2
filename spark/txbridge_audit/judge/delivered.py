"""The visible records of a transaction, compared with its half message."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from txbridge_audit.judge.decided import DecidedCase
from txbridge_audit.judge.lazy import lazy
from txbridge_audit.protocol.mentions import CopyMention, MessagePart

#: Place of a visible record: topic, partition, offset.
Place = tuple[str, int, int]


class DeliveredCase(DecidedCase):
    """What the mentions of a transaction say about its visible records, too."""

    def part_of(self, copy: CopyMention) -> MessagePart | None:
        """The message that a copy is of, if the half message holds several."""
        parts = self.own.parts if self.own is not None else None
        if parts is None or copy.number is None or copy.numbers != len(parts) or copy.number > len(parts):
            return None
        return parts[copy.number - 1]

    @lazy
    def _split_copies(self) -> tuple[list[CopyMention], list[CopyMention]]:
        own = self.own
        if own is None:
            return [], []
        home: list[CopyMention] = []
        foreign: list[CopyMention] = []
        for copy in self.transaction.copies:
            if copy.id == own.id:
                (home if copy.topic == self._topic_of(copy) else foreign).append(copy)
        return home, foreign

    def _topic_of(self, copy: CopyMention) -> str | None:
        if self.own is None or self.own.parts is None:
            return self.own.real_topic if self.own else None
        part = self.part_of(copy)
        return part.topic if part else None

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
        if not home or self.own is None or self.own.parts is None:
            return len(home)
        return 2 if len(home) > len(self._visible_numbers) else 1

    @property
    def is_visible(self) -> bool:
        return self.copies > 0

    @lazy
    def _visible_numbers(self) -> set[int | None]:
        return {copy.number for copy in self.home}

    @lazy
    def missing_topics(self) -> set[str]:
        """Of several messages: the topics of those that are not visible."""
        parts = self.own.parts if self.own is not None else None
        return {part.topic for number, part in enumerate(parts or (), 1) if number not in self._visible_numbers}

    @property
    def is_incomplete(self) -> bool:
        """Of several messages: whether some are not visible."""
        return bool(self.missing_topics)

    def _asks(self, copy: CopyMention) -> tuple[int, int | None, int]:
        """Content, partition and timestamp that the half message asks for."""
        own = self.own
        assert own is not None  # A copy is at home in the topic of a half message that can be read.
        part = self.part_of(copy)
        if part is not None:
            return part.content, part.place, part.dated or own.born
        return own.content, own.fixed_partition, own.dated

    @lazy
    def altered_at(self) -> Place | None:
        """The first copy whose key, value, headers or timestamp differ."""
        return _first(copy for copy in self.home if self._is_altered(copy))

    def _is_altered(self, copy: CopyMention) -> bool:
        content, _, dated = self._asks(copy)
        return copy.content != content or (copy.dated is not None and copy.dated != dated)

    @lazy
    def misplaced_at(self) -> Place | None:
        """The first copy in a wrong partition. A partition that the user fixed wins over the key."""
        return _first(copy for copy in self.home if self._is_misplaced(copy))

    def _is_misplaced(self, copy: CopyMention) -> bool:
        content, place, _ = self._asks(copy)
        if place is not None:
            return copy.place != place
        # An altered key does not tell the right partition.
        return copy.by_key is not None and copy.content == content

    @lazy
    def out_of_order_at(self) -> Place | None:
        """Of several messages, the first copy that lies behind the copy of a later one in its partition.

        If one of them is there twice, the first of its copies is unknown, and None is returned.
        """
        if not self.is_several or self.copies != 1:
            return None
        placed = sorted((_place_of(copy), copy.number or 0) for copy in self.home)
        for (one, number), (following, its_number) in pairwise(placed):
            if one[:2] == following[:2] and its_number < number:
                return following
        return None

    @property
    def topics(self) -> list[str]:
        """The real topics that it asks for."""
        message = self.message
        if message is None:
            return []
        return [part.topic for part in message.parts] if message.parts is not None else [str(message.real_topic)]


def _place_of(copy: CopyMention) -> Place:
    return copy.topic, copy.place, copy.at


def _first(copies: Iterable[CopyMention]) -> Place | None:
    return min(map(_place_of, copies), default=None)
