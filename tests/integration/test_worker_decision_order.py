"""END is applied in order and exactly once, whatever Faust does (P2 to P5), also for copies of half messages."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, LocalOwner, Prepared, eventually
from txbridge.core.decision_record import DecisionEvent
from txbridge.embedded import EmbeddedKafka
from txbridge.worker.ingest.decision_log import DecisionInbox
from txbridge.worker.turn.commit_loop import CommitLoop

_MESSAGES = 120


@dataclass
class Script:
    """Messages with contradicting decisions in END, and the decision of each that has to win."""

    topic: str
    events: list[DecisionEvent]
    winners: dict[Prepared, tuple[bytes, int]]

    def verify(self, bridge: Bridge) -> None:
        """Expect that every first decision won, and that each message was finished once."""
        eventually(lambda: len(bridge.outcomes()) == len(self.winners), 30, "not all decisions were applied")
        end = self.events[-1].offset + 1
        eventually(lambda: bridge.checkpoint(0)["end"] == end, 30, "END was not applied to its end")
        names = {COMMIT: ["commit"], ROLLBACK: ["rollback"]}
        outcomes = bridge.outcomes()
        for prepared, (_, decision) in self.winners.items():
            assert outcomes[0, prepared.offset] == names[decision]
        assert bridge.visible(self.topic) == {value: 1 for value, won in self.winners.values() if won == COMMIT}


def _write(bridge: Bridge, seed: int, topic: str | None = None) -> Script:
    chance = random.Random(seed)
    topic = topic or bridge.create_topic("real")
    values = [b"%d-%d" % (seed, number) for number in range(_MESSAGES)]
    prepared = bridge.prepare_many(topic, values, partition=0)
    commands: list[tuple[Prepared, int]] = []
    for one in prepared:
        commands += [(one, decision) for decision in (COMMIT, ROLLBACK, UNKNOWN, COMMIT)]
    chance.shuffle(commands)
    winners: dict[Prepared, tuple[bytes, int]] = {}
    records: list[tuple[bytes | None, list[tuple[str, bytes]]]] = []
    of = dict(zip(prepared, values, strict=True))
    while commands:
        # Some records have several entries, which are applied together and in order.
        together, commands = commands[: (count := chance.choice([1, 1, 1, 5]))], commands[count:]
        for one, decision in together:
            if decision != UNKNOWN:
                winners.setdefault(one, (of[one], decision))
        records.append(("\n".join(one.entry(decision) for one, decision in together).encode(), bridge.end_headers()))
    stored = bridge.produce_together(bridge.names.end, records, partition=0)
    events = [
        DecisionEvent(message.offset() or 0, None, value, headers)
        for message, (value, headers) in zip(stored, records, strict=True)
    ]
    return Script(topic, events, winners)


def _in_order(events: list[DecisionEvent], _: random.Random) -> Iterator[DecisionEvent]:
    yield from events


def _nothing(_: list[DecisionEvent], __: random.Random) -> Iterator[DecisionEvent]:
    yield from ()


def _repeated(events: list[DecisionEvent], chance: random.Random) -> Iterator[DecisionEvent]:
    for number, event in enumerate(events):
        yield event
        if chance.random() < 0.1:
            # Like a rebalance: back to an earlier committed offset.
            yield from events[max(0, number - chance.randrange(30)) : number + 1]


def _skipping(events: list[DecisionEvent], chance: random.Random) -> Iterator[DecisionEvent]:
    for event in events:
        if chance.random() < 0.9:
            yield event


def _shuffled(events: list[DecisionEvent], chance: random.Random) -> Iterator[DecisionEvent]:
    yield from chance.sample(events, len(events))


@pytest.mark.parametrize(
    "deliver", [_in_order, _nothing, _repeated, _skipping, _shuffled], ids=lambda deliver: deliver.__name__.strip("_")
)
@pytest.mark.parametrize("when", ["before", "during"])
def test_p5_end_is_applied_in_its_order_when_faust_delivers(
    bridge: Bridge, deliver: Callable[[list[DecisionEvent], random.Random], Iterator[DecisionEvent]], when: str
) -> None:
    chance = random.Random(5)
    first = _write(bridge, 1)
    with bridge.local_owner(transaction_timeout=600_000) as local:
        if when == "during":
            # The owner first catches up with Faust, and then applies Faust's events.
            _feed(local, first.events)
            first.verify(bridge)
            eventually(lambda: _level(local))
        second = _write(bridge, 2, first.topic)
        _feed(local, list(deliver(second.events, chance)))
        both = Script(first.topic, second.events, first.winners | second.winners)
        both.verify(bridge)
        if deliver is _in_order and when == "during":
            eventually(lambda: _level(local), message="it goes on by itself though Faust delivers all there is")


def _feed(local: LocalOwner, events: list[DecisionEvent]) -> None:
    for event in events:
        local.owner.inbox.offer_event(event)


def _level(local: LocalOwner) -> bool:
    inbox = local.owner.inbox
    with inbox._changed:
        return inbox._level


def test_p5_an_inbox_that_overflows_loses_nothing(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecisionInbox.__init__, "__defaults__", (3,))
    first = _write(bridge, 1)
    with bridge.local_owner(transaction_timeout=600_000) as local:
        _feed(local, first.events)
        first.verify(bridge)
        second = _write(bridge, 2, first.topic)
        _feed(local, second.events)
        Script(first.topic, second.events, first.winners | second.winners).verify(bridge)


def test_p9_an_end_that_outruns_the_commits_waits_in_kafka_not_in_memory(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[int] = []
    run = CommitLoop.run

    def slow(self: CommitLoop) -> None:
        waiting.append(len(self._decisions.waiting))
        time.sleep(0.02)
        run(self)

    monkeypatch.setattr(CommitLoop, "run", slow)
    topic = bridge.create_topic("real")
    prepared = bridge.prepare(topic, b"the last", partition=0)
    records = [(prepared.entry(UNKNOWN).encode(), bridge.end_headers())] * 9_999
    bridge.produce_together(bridge.names.end, [*records, (prepared.entry(COMMIT).encode(), records[0][1])], partition=0)
    with bridge.local_owner(transaction_timeout=600_000, entries=100):
        bridge.wait_visible(topic, [b"the last"])
    # Number of the 10,000 that one look reads.
    assert 1_000 <= max(waiting) <= 2_000


def test_p5_faust_in_a_thread_of_its_own_while_end_grows(bridge: Bridge) -> None:
    """Offers, repeats and gaps compete with the owner's own reading, whenever it has caught up."""
    chance = random.Random(7)
    topic = bridge.create_topic("real")
    written: list[DecisionEvent] = []
    done = threading.Event()

    def faust(local: LocalOwner) -> None:
        position = 0
        while not done.is_set() or position < len(written):
            if position >= len(written):
                done.wait(0.001)
                continue
            local.owner.inbox.offer_event(written[position])
            position += 1
            if chance.random() < 0.02:
                position = max(0, position + chance.randrange(-20, 5))

    with bridge.local_owner(transaction_timeout=600_000) as local:
        feeder = threading.Thread(target=faust, args=(local,))
        feeder.start()
        winners: dict[Prepared, tuple[bytes, int]] = {}
        for seed in range(5):
            script = _write(bridge, seed, topic)
            winners |= script.winners
            written += script.events
        done.set()
        feeder.join()
        Script(topic, written, winners).verify(bridge)


def test_p5_what_was_decided_before_a_takeover_is_applied_first(bridge: Bridge) -> None:
    """A new owner starts at the checkpoint, although Faust goes on from another offset."""
    first = _write(bridge, 1)
    with bridge.local_owner(transaction_timeout=600_000) as local:
        _feed(local, first.events[:40])
        eventually(lambda: bridge.checkpoint(0).get("end") == first.events[-1].offset + 1)
    second = _write(bridge, 2, first.topic)
    with bridge.local_owner(transaction_timeout=600_000) as local:
        _feed(local, second.events[50:])
        _feed(local, first.events[60:70])
        Script(first.topic, second.events, first.winners | second.winners).verify(bridge)


def _copies(bridge: Bridge) -> dict[bytes, bytes]:
    """From the discard topic: place of each copy, and half coordinates of its original."""
    return {
        record["TXB_SOURCE"].rpartition(b"TOPIC:")[2]: record["TXB_HALF"]
        for record in bridge.discarded()
        if record["TXB_REASON"] == b"COPY"
    }


def test_p3_a_half_message_that_was_sent_twice_is_one_message(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    bridge.worker()
    values = [b"end names the first", b"end names the copy", b"only a check decides", b"rolled back by the copy"]
    first = [bridge.prepare(topic, value, partition=0) for value in values]
    again = [bridge.send_again(one, topic, value) for one, value in zip(first, values, strict=True)]
    with bridge.member("group") as member:
        bridge.decide(first[0], COMMIT)
        bridge.decide(again[1], COMMIT)
        bridge.decide(again[3], ROLLBACK)
        eventually(lambda: member.checks(first[2]), 30, "the third was not checked")
        assert not member.checks(again[2])
        bridge.decide(first[2], COMMIT, source="check")
        bridge.wait_visible(topic, values[:3])
        # The original and its copy have different decisions, and the first one wins.
        bridge.decide(first[3], COMMIT)
        last = bridge.prepare(topic, b"last", partition=0)
        bridge.decide(last, COMMIT)
        bridge.wait_visible(topic, [b"last"])
    assert bridge.visible(topic) == {b"last": 1, **dict.fromkeys(values[:3], 1)}
    outcomes = bridge.outcomes()
    assert [outcomes[0, one.offset] for one in first] == [["commit"], ["commit"], ["commit"], ["rollback"]]
    assert [outcomes[0, one.offset] for one in again] == [["discard"]] * 4
    assert _copies(bridge) == {
        f"0:{copy.offset}".encode(): f"0:{one.offset}".encode() for one, copy in zip(first, again, strict=True)
    }


# After the commit the next owner finds the original in HALF alone. Before it, the next owner decides the original
# again.
@pytest.mark.parametrize("fault", [pytest.param("commit.flushed@2", marks=pytest.mark.long), "commit.committed@2"])
def test_p3_a_copy_is_recognised_by_the_next_owner_too(kafka: EmbeddedKafka, fault: str) -> None:
    with Bridge(kafka.bootstrap_servers, f"copies {fault}", partitions=1) as bridge:
        topic = bridge.create_topic("real")
        first = bridge.prepare(topic, b"value")
        bridge.decide(first, COMMIT)
        victim = bridge.worker(fault)
        assert victim.wait_dead(40) == -signal.SIGKILL
        # The copy comes after its original, which may be finished already.
        again = bridge.send_again(first, topic, b"value")
        bridge.decide(again, COMMIT)
        bridge.worker()
        bridge.wait_outcome(again, "discard")
        last = bridge.prepare(topic, b"last")
        bridge.decide(last, COMMIT)
        bridge.wait_visible(topic, [b"value", b"last"])
        assert bridge.visible(topic) == {b"value": 1, b"last": 1}
        assert _copies(bridge) == {f"0:{again.offset}".encode(): f"0:{first.offset}".encode()}
