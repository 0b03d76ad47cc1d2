"""Real topics that `txbridge topics` creates if they are missing. Existing ones belong to others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from txbridge.core.names import Names, is_topic
from txbridge.errors import UsageError
from txbridge.kafka.admin import UNCLEAN, FoundTopic
from txbridge.kafka.topic_rules import LARGEST_BATCH, marker_problem
from txbridge.text import counted
from txbridge.topics.spec import BATCH_ROOM, COPY_ROOM


@dataclass(frozen=True, slots=True)
class RealTopic:
    """A real topic as it was asked for; without a number of partitions it gets four."""

    name: str
    partitions: int | None = None

    @classmethod
    def parse(cls, text: str, names: Names, most: int) -> Self:
        """Parse TOPIC or TOPIC:PARTITIONS. Raises UsageError."""
        name, colon, number = text.partition(":")
        if not is_topic(name):
            raise UsageError(f"--real-topic takes TOPIC or TOPIC:PARTITIONS, and {name!r} is not the name of a topic")
        if names.is_forbidden(name):
            raise UsageError(f"--real-topic {name}: no message is ever delivered to a topic of that name")
        if not colon:
            return cls(name)
        if not number.isdecimal() or not 1 <= int(number) <= most:
            raise UsageError(f"--real-topic {name}: the number of partitions must be between 1 and {most}")
        return cls(name, int(number))

    def config_for(self, message_size: int) -> dict[str, str]:
        """Properties of a new topic. A delivered message is its half message with two headers."""
        return {LARGEST_BATCH: str(max(message_size + COPY_ROOM, BATCH_ROOM))}

    def objections_to(self, facts: FoundTopic) -> list[str]:
        found = []
        if self.partitions not in {None, facts.partitions}:
            has = counted(facts.partitions, "partition")
            why = "another number changes where keys go, so it is not changed here (kafka-topics.sh --alter does)"
            found.append(f"has {has}, not {self.partitions}: {why}")
        if (why_not := marker_problem(int(facts.config.get(LARGEST_BATCH, BATCH_ROOM)))) is not None:
            found.append(f"nothing can be delivered to it: {why_not}")
        return found

    def notes_on(self, facts: FoundTopic, message_size: int) -> list[str]:
        found = []
        limit = int(facts.config.get(LARGEST_BATCH, BATCH_ROOM))
        if limit < message_size:
            found.append(f"takes records of up to {limit:,} bytes; a larger message is held when it is committed")
        if facts.elects_unclean:
            found.append(f"{UNCLEAN} is true: delivered messages can be lost")
        return found
