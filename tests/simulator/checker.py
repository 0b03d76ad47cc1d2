"""The independent checker: it checks every Kafka transaction at its decision, and the whole run once all is quiet.

It works from the logs and the list of what clients did, through `model`, which was written from docs/protocol.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Container
from typing import Any

from tests.simulator.cluster import TOO_SMALL, WANTS_KEYS, Cluster, Finished, Place, Records
from tests.simulator.kafka_writer import POISON
from tests.simulator.lost_tails import LostTails
from tests.simulator.model import Entry, Half, PartitionModel, Times, text_headers
from tests.simulator.partition_log import Stored
from tests.simulator.transactional_sender import STRANGER
from tests.simulator.witness import Witness
from tests.simulator.world import World
from tests.support.message_frames import delivered_id
from txbridge.core.names import Names

#: A greatest age that is shorter than a run (ms).
_SHORT = 60_000
#: Without faults, a check is sent at most this long after it was due (ms). Its topic may be blocked (90 s), an
#: unresponsive client is given up after 10 s, and all due checks share a rate of two a second.
_CHECKED_WITHIN = 120_000
#: What a check that its topic refuses takes from the others of its group (ms): two aborts, and pauses after them.
_REFUSED = 10_000
#: Greatest delay (ms) with which an owner knows the brokers' time. It learns this time from acknowledgements, which it
#: handles between Kafka transactions.
_LATE = 90_000


class Violation(Exception):  # noqa: N818 - what was found is no error of the simulator's
    """A broken promise. The text names the promise and the place."""


class Checker:
    """Checks one run."""

    def __init__(self, world: World, names: Names, partitions: int, times: Times) -> None:
        self._world, self._names, self._times = world, names, times
        self._cluster: Cluster = world.cluster
        logs = self._cluster.logs
        self.models = [
            PartitionModel(logs[names.half, number], logs[names.end, number], times, world.count)
            for number in range(partitions)
        ]
        self._checkpoint: list[dict[str, Any] | None] = [None] * partitions
        #: Records of END of the Kafka transaction that is checked that ask for a reply, by its name: half message, and
        #: the state in which the record has left it. None: no half message of the sender.
        self._asked: dict[str, tuple[Entry, Half | None, str]] = {}
        self._parked: list[dict[int, dict[str, Any]]] = [{} for _ in range(partitions)]
        #: Append times of the records of the parked entries (ms).
        self._parked_at: list[dict[int, int]] = [{} for _ in range(partitions)]
        #: Smallest size by group of a parked message whose check is too large for the check topic.
        self._too_large: dict[str, int] = {}
        #: Witnesses by the owner's name in checkpoints.
        self.witnesses: dict[str, Witness] = {}
        self._cluster.on_finished = self._on_finished
        self.violation: Violation | None = None

    def _on_finished(self, finished: Finished) -> None:
        # This runs in the actor whose request decided the transaction, so the scheduler raises the violation.
        if finished.owner != STRANGER and finished.committed and finished.records and self.violation is None:
            try:
                self._check(finished)
            except Violation as violation:
                self.violation = violation

    def refused_as_absent(self, number: int, offset: int) -> None:
        """Note that a worker refused an END because there is no half message at this offset.

        This is a violation if there is one. It would stay unseen otherwise, because a check would decide the message
        again.
        """
        model = self.models[number]
        # A copy is as absent as the message that it copies. A decision about a malformed message is refused rightly. So
        # is a late one about a copy of a finished message, which is known as a copy for a minute.
        first = model.first_of(offset)
        half = model.half(first)
        if half is None or half.is_malformed or (first != offset and half.is_finished):
            return
        if self.violation is None:
            self.violation = Violation(
                f"P2: a decision about half {number}:{offset} was refused: it is said to be absent"
            )

    def _require(self, condition: object, promise: str, text: str) -> None:
        if not condition:
            raise Violation(f"{promise}: {text}")

    def _check(self, finished: Finished) -> None:
        by_topic: dict[str, Records] = {}
        for place, stored in finished.records:
            by_topic.setdefault(place[0], []).append((place, stored))
        offset_records = by_topic.pop(self._names.offset, [])
        checkpoint = [one for one in offset_records if b"/" not in _key_rest(one, self._names)]
        self._require(
            len(checkpoint) == 1,
            "P3",
            f"Kafka transaction {finished.number} was committed with {len(checkpoint)} checkpoints: it was torn",
        )
        number = checkpoint[0][0][1]
        new = json.loads(checkpoint[0][1].value or b"")
        witness = self.witnesses[new["owner"].partition(".")[0]]
        before, model = self._checkpoint[number], self.models[number]
        ended = before["end"] if before else 0
        self._check_lost_tails(number, before, by_topic)
        if before and before["owner"] != new["owner"]:
            self._taken_over(number)
        self._check_checkpoint(number, before, new)
        decided, given_up = self._apply_ends(model, _position(before), _position(new))
        delivered = self._deliveries(by_topic, number, decided)
        # OP is no evidence here: it already names a message that was discarded and resumed before.
        abandoned = {offset for offset in given_up if model.halves[offset].state == "abandoned"}
        op_place = by_topic.pop(self._names.op, [])
        set_aside, discarded, told = self._discards(by_topic.pop(self._names.discard, []), number, witness)
        self._replies(by_topic, number)
        self._require(told == abandoned, "P2", f"{sorted(told)} were told to be abandoned, not {sorted(abandoned)}")
        checked = self._checks(by_topic, number, witness, new["end"], finished.began)
        rolled_back = {offset for offset in decided if model.halves[offset].state == "rolled_back"}
        did = {"commit": delivered, "rollback": rolled_back, "discard": discarded | set_aside, "abandon": abandoned}
        self._ops(op_place, model, did)
        self._ends_in_op(op_place, decided, f"{_text(_position(before))}-{_text(_position(new))}")
        self._offset_records(number, [one for one in offset_records if one is not checkpoint[0]], witness, decided)
        for offset in decided.keys() - rolled_back - delivered:
            half = model.halves[offset]
            if half.state == "abandoned":
                self._world.count("abandoned in the transaction that would have held it")
            if half.state == "held":
                self._world.count("transition pending commit_undeliverable")
                self._require(
                    self._parked[number].get(offset, {}).get("state") == "held",
                    "P2",
                    f"half {number}:{offset} was committed at END {half.decided} and is neither delivered nor held",
                )
                self._require(
                    self._may_be_held(half),
                    "P14",
                    f"half {number}:{offset} is held, so that others overtake it, and its topic takes everything",
                )
        for offset in decided.keys() & delivered:
            self._world.count("transition pending commit")
            self._require(model.halves[offset].state == "committed", "P2", f"{number}:{offset}")
        self._check_watermark(number, before, new)
        self._check_malformed_ends(model, ended, new["end"])
        if before and len(finished.records) == 1 and new["op"] > before["op"] and new["end"] == ended:
            self._world.count("checkpoint settled at the ends of the logs")
        for offset, appended in checked.items():
            parked = self._parked[number].get(offset, {})
            half = model.halves[offset]
            self._require(parked.get("checks") == half.checks, "P6", f"{number}:{offset}: a check was not counted")
            # The interval counts from the time at which the application can see the check, not from the worker's record
            # of it.
            half.due = appended + self._times.interval
        self._checkpoint[number] = new

    def _check_lost_tails(self, number: int, before: dict[str, Any] | None, by_topic: dict[str, Records]) -> None:
        """Check that no owner works on with a lost tail: no new owner, and no old one that still writes to OP."""
        lost_tails, names = self._world.lost_tails, self._names
        gone = f"partition {number} was served on, although {{}} has lost its tail"
        self._require((names.offset, number) not in lost_tails, "P3", gone.format(names.offset))
        lost = lost_tails.get((names.op, number))
        if lost is not None and names.op in by_topic:
            needed = LostTails.is_needed(lost, before["op"] if before else 0)
            self._require(not needed, "P3", gone.format(names.op))
            del lost_tails[names.op, number]

    def _taken_over(self, number: int) -> None:
        """Adjust due times. A new owner knows a parked entry's append time; its check may have come a moment later."""
        for offset, appended in self._parked_at[number].items():
            half = self.models[number].halves[offset]
            if half.state == "pending" and half.checks:
                half.due = min(half.due, appended + self._times.interval)

    def _check_checkpoint(self, number: int, before: dict[str, Any] | None, new: dict[str, Any]) -> None:
        if before is not None:
            for name in ("half", "op"):
                self._require(new[name] >= before[name], "P10", f"checkpoint {number}: {name} went back to {new[name]}")
            went_back = _position(new) < _position(before)
            self._require(not went_back, "P10", f"checkpoint {number}: END went back to {_position(new)}")
        for name, topic in (("half", self._names.half), ("end", self._names.end), ("op", self._names.op)):
            lost = self._world.lost_tails.get((topic, number))
            high = len(lost.whole) if lost else self._cluster.logs[topic, number].high_watermark
            self._require(new[name] <= high, "P10", f"checkpoint {number}: {name} {new[name]} is beyond the log")
        stable = self._cluster.logs[self._names.end, number].last_stable_offset
        text = f"checkpoint {number}: END {new['end']} is beyond {stable}, where a Kafka transaction is open"
        self._require(new["end"] <= stable, "P1", text)

    def _apply_ends(
        self, model: PartitionModel, start: tuple[int, int], end: tuple[int, int]
    ) -> tuple[dict[int, int], set[int]]:
        """Apply END between two positions.

        Returns the decided messages with their place in the order, and the abandoned ones.
        """
        decided: dict[int, int] = {}
        given_up: set[int] = set()
        self._asked = {}
        for position in range(start[0], end[0] + (end[1] > 0)):
            entries = model.entries(position) or []
            if position == end[0]:
                self._world.count("cut within an END record")
                self._require(len(entries) > end[1], "P10", f"END {position} has no entry {end[1]} to go on from")
                entries = entries[: end[1]]
            for entry in entries[start[1] if position == start[0] else 0 :]:
                half = model.apply(entry, self._world.now)
                if (name := text_headers(entry.stored).get("TXB_REPLY")) is not None:
                    self._asked[name] = self._who_was_asked_about(entry, model)
                if half is not None and half.decided == position:
                    decided.setdefault(entry.half, len(decided))
                    if entry.stored.transaction:
                        self._world.count("stranger's committed decision counted")
                if half is not None and half.state == "abandoned":
                    given_up.add(entry.half)
            if model.decision_log.entries[position].is_aborted:
                self._world.count("stranger's aborted decision passed over")
        return decided, given_up

    def _may_be_held(self, half: Half) -> bool:
        """Whether a topic of what is due has ever refused a record or been absent, or may have."""
        due = [
            half.messages[number]
            for number in half.waiting
            if half.times[number] <= self._world.now or self._world.brokers_were_set
        ]
        return any(one.topic in self._world.refused or one.topic == "missing" or one.partition == 7 for one in due)

    def _deliveries(self, by_topic: dict[str, Records], number: int, decided: dict[int, int]) -> set[int]:
        own = {self._names.op, self._names.discard}
        # Numbers of the delivered messages by half offset.
        found: dict[int, set[int]] = {}
        for topic, records in by_topic.items():
            if topic in own or topic.startswith("RMQ_SYS_"):
                continue
            last: dict[Place, tuple[int, int]] = {}
            within: dict[tuple[Place, int], int] = {}
            for place, stored in records:
                headers = text_headers(stored)
                partition, _, offset_text = headers["TXB_HALF"].partition(":")
                offset = int(offset_text)
                name = f"half {partition}:{offset}"
                self._require(int(partition) == number, "P1", f"{name} was delivered by the owner of {number}")
                half = self.models[number].half(offset)
                self._require(half is not None and not half.is_malformed, "P1", f"{name} was never prepared")
                assert half is not None
                message = self._number_of(half, headers, name)
                if offset in decided:
                    # Only held messages may come after their turn. Kafka transactions themselves follow END's order.
                    in_order = last.get(place, (-1, -1)) < (decided[offset], message)
                    self._require(in_order, "P14", f"{name} stands in {place} behind what was decided later")
                    last[place] = (decided[offset], message)
                self._require(
                    within.get((place, offset), -1) < message, "P12", f"{name}: messages in {place} changed places"
                )
                within[place, offset] = message
                if offset not in found:
                    self._require(half.state != "rolled_back", "P4", f"{name} was rolled back at END {half.decided}")
                    self._require(half.state != "committed", "P3", f"{name} was delivered twice")
                    # It may be given up by the Kafka transaction that applies its commit and delivers what is due.
                    good = half.state in {"held", "scheduled"} or (half.state == "abandoned" and offset in decided)
                    self._require(good, "P1", f"{name} was delivered though it is {half.state}")
                self._require_due(half.times[message], "P13", f"{name} was delivered")
                before = half.delivered | found.get(offset, set())
                self._require(message not in before, "P3", f"{name} was delivered twice")
                found.setdefault(offset, set()).add(message)
                identity = delivered_id(half.headers["UNIQ_KEY"], half.times)
                same = _is_copy(half, message, topic, place, stored) and headers["UNIQ_KEY"] == identity
                self._require(same, "P1", f"{name} was delivered as something else, to {place}")
        finished = set()
        for offset, messages in found.items():
            half = self.models[number].halves[offset]
            self._require_whole_steps(f"half {number}:{offset}", half, messages)
            if half.is_framed:
                self._world.count("several messages delivered together")
                if offset not in decided:
                    self._world.count("several messages held and delivered together")
                if half.state == "scheduled" and not half.is_timed:
                    self._world.count("several messages scheduled and delivered together")
            if half.is_timed:
                self._world.count("step delivered alone" if len(messages) == 1 else "step of several messages")
            half.delivered |= messages
            is_last = not half.waiting
            if is_last:
                finished.add(offset)
            event = f"{'commit' if offset in decided else 'deliver'}{'' if is_last else '_step'}"
            if not (is_last and offset in decided):
                self._world.count(f"transition {'pending' if offset in decided else half.state} {event}")
            if is_last:
                half.state = "committed"
            elif half.state == "abandoned":
                self._world.count("abandoned in the transaction that delivered its first step")
            else:
                half.state = "scheduled"
        return finished

    def _require_whole_steps(self, name: str, half: Half, messages: set[int]) -> None:
        """Require that a Kafka transaction delivers all messages that name the same time, and no later ones before."""
        left = [half.times[number] for number in half.waiting if number not in messages]
        last = max(half.times[number] for number in messages)
        text = f"{name}: {len(messages)} messages are in a Kafka transaction, {len(half.waiting)} were to come"
        self._require(last < min(left, default=last + 1), "P12", text)

    def _number_of(self, half: Half, headers: dict[str, str], name: str) -> int:
        """The number of this message within its half message, from 0."""
        if not half.is_framed:
            self._require("TXB_MESSAGE" not in headers, "P12", f"{name} is one message, and was delivered as a part")
            return 0
        number, _, count = headers.get("TXB_MESSAGE", "").partition("/")
        good = count == str(len(half.messages)) and number.isdigit() and 1 <= int(number) <= len(half.messages)
        self._require(good, "P12", f"{name} holds several messages, and one of them says {headers.get('TXB_MESSAGE')}")
        return int(number) - 1

    def _discards(self, records: Records, number: int, witness: Witness) -> tuple[set[int], set[int], set[int]]:
        """Return the offsets of records in the discard topic: malformed, discarded and abandoned ones."""
        model, set_aside, discarded, abandoned = self.models[number], set(), set(), set()
        for _, stored in records:
            headers = text_headers(stored)
            reason = headers["TXB_REASON"]
            if reason in {"MALFORMED", "COPY"}:
                topic, partition, offset_text = headers["TXB_SOURCE"].split(":")
                offset = int(offset_text)
                self._require(int(partition) == number, "P3", "a stranger's malformed record was set aside")
                if topic == self._names.end:
                    self._require(offset not in model.set_aside, "P3", f"END {offset} was set aside twice")
                    model.set_aside.add(offset)
                else:
                    half = model.half(offset)
                    good = half is not None and half.is_malformed and not half.is_set_aside
                    self._require(good, "P3", f"half {number}:{offset} was set aside twice or without need")
                    assert half is not None
                    half.is_set_aside = True
                    set_aside.add(offset)
                    said = headers.get("TXB_HALF") == f"{number}:{model.first_of(offset)}"
                    self._require(
                        half.is_copy == (reason == "COPY") == said, "P8", f"half {number}:{offset} is no {reason}"
                    )
                self._world.count(f"set aside {reason.lower()}")
                continue
            offset = int(headers["TXB_HALF"].partition(":")[2])
            half = model.half(offset)
            name = f"half {number}:{offset}"
            if reason == "ABANDONED":
                self._require(headers.get("TXB_REMARK") == "gone for good", "P2", f"{name}: why it was abandoned")
                assert half is not None
                self._require(stored.value == half.stored.value, "P2", f"{name}: its copy has another body")
                count = int(headers.get("TXB_DELIVERED", 0))
                self._require(count == len(half.delivered), "P12", f"{name} was abandoned after {count} messages")
                if half.delivered:
                    self._world.count("abandoned after a step")
                abandoned.add(offset)
                continue
            self._require(
                half is not None and half.state == "pending", "P7", f"{name} was discarded, is {half and half.state}"
            )
            assert half is not None
            if reason == "EXPIRED":
                self._require_due(half.since + self._times.max_age, "P7", f"{name} expired")
            else:
                self._require(
                    half.checks == self._times.max_checks, "P7", f"{name} discarded after {half.checks} checks"
                )
                self._require_due(half.due, "P7", f"{name} was discarded")
            self._world.count(f"discard {reason}")
            self._world.count("transition pending give_up")
            self._no_earlier_decision(model, offset, half, witness, "P7")
            half.state = "discarded"
            half.due = self._world.now
            discarded.add(offset)
        return set_aside, discarded, abandoned

    def _who_was_asked_about(self, entry: Entry, model: PartitionModel) -> tuple[Entry, Half | None, str]:
        offset = model.find(entry.transaction_id)
        if offset is None or (entry.event != "find" and offset != entry.half):
            return entry, None, ""
        half = model.half(offset)
        assert half is not None
        is_read = entry.event != "find" or offset <= entry.half
        is_known = half.headers["PGROUP"] == entry.group and not half.is_malformed and is_read
        return entry, half if is_known else None, half.state

    def _replies(self, by_topic: dict[str, Records], number: int) -> None:
        """Check that each reply is true, and in the Kafka transaction that applies what it answers."""
        prefix = self._names.check("")
        replies = [one for topic, of_it in by_topic.items() if topic.startswith(prefix) for one in of_it]
        for place, stored in replies:
            headers = text_headers(stored)
            if (name := headers.get("TXB_REPLY")) is None:
                continue
            self._require(name in self._asked, "P5", f"reply {name} of {number} answers nothing that was just applied")
            entry, half, state = self._asked.pop(name)
            self._require(place[0] == self._names.check(entry.group), "P5", f"reply {name} went to {place[0]}")
            told = headers["TXB_STATE"]
            self._world.count(f"client told {told}")
            text = f"a client was told that {entry.transaction_id} of {number} is {told}, and it "
            is_open = half is not None and state in {"pending", "held", "scheduled", "discarded"}
            # Finished ones may be forgotten, and malformed ones are not looked for.
            self._require(half is not None or told in {"unknown", "discarded"}, "P5", f"{text}was never prepared")
            if half is None or told == "unknown":
                self._require(not is_open, "P5", f"{text}is {state}")
                continue
            # What comes in the same Kafka transaction as the reply may be committed just now.
            now = half.state if told == "committed" else state
            good = {"discarded": {"discarded", "forgotten"}, "held": {"held", "scheduled"}}
            expected = good.get("held" if told == "scheduled" else told, {told})
            self._require(now in expected, "P5", f"{text}is {now}")
            if entry.event == "abandon":
                self._require(told not in {"held", "scheduled"}, "P5", f"{text}was to be given up")
            if (count := headers.get("TXB_DELIVERED")) is not None:
                self._require(count == str(len(half.delivered)), "P5", f"{text}had {len(half.delivered)} delivered")

    def _checks(
        self, by_topic: dict[str, Records], number: int, witness: Witness, end: int, began: int
    ) -> dict[int, int]:
        """Half offsets of the checks, and when these were appended (ms)."""
        model, found = self.models[number], dict[int, int]()
        prefix = self._names.check("")
        for topic, records in by_topic.items():
            if not topic.startswith(prefix):
                continue
            for _, stored in records:
                headers = text_headers(stored)
                if "TXB_REPLY" in headers:
                    continue
                offset = int(headers["TXB_HALF"].partition(":")[2])
                half, name = model.half(offset), f"half {number}:{offset}"
                self._require(
                    half is not None and half.state == "pending", "P6", f"{name} checked, is {half and half.state}"
                )
                assert half is not None
                self._require(offset not in found, "P6", f"{name} was checked twice at once")
                half.checks += 1
                times = int(headers["TRANSACTION_CHECK_TIMES"])
                self._require(times == half.checks, "P6", f"{name}: check {times} should be number {half.checks}")
                self._require(times <= self._times.max_checks, "P7", f"{name}: check {times} is one too many")
                self._require_due(half.due, "P6", f"{name} was checked")
                self._require(
                    int(headers["TXB_END"]) == end, "P6", f"{name}: its END position is not that of the checkpoint"
                )
                self._require(
                    witness.saw_alive(topic, began), "P6", f"{name} was checked, but nobody of its group was alive"
                )
                self._no_earlier_decision(model, offset, half, witness, "P6")
                self._world.count("transition pending check")
                found[offset] = stored.appended
        return found

    def _no_earlier_decision(
        self, model: PartitionModel, offset: int, half: Half, witness: Witness, promise: str
    ) -> None:
        """Fail if a decision was stored before the check or discard fell due: it must have stopped that."""
        if self._world.brokers_were_set:
            # It may have been due by the brokers' clock before that.
            return
        fell_due = min(half.due, half.since + self._times.max_age)
        noticed = max(fell_due, witness.started)
        for place, known, until in self._world.former_ends:
            if promise == "P6" and place == (self._names.end, self.models.index(model)) and noticed < until:
                # An owner that asked a former leader for the end of END may not know the later records. A check does no
                # harm, because it is answered with the same decision. A discard does, so its owner has proven the end.
                unknown = (
                    model.decision_log.entries[known].appended if known < model.decision_log.high_watermark else noticed
                )
                noticed = min(noticed, unknown)
        for position in range(model.decision_log.high_watermark - 1, -1, -1):
            stored = model.decision_log.entries[position]
            if stored.appended >= noticed:
                continue
            if half.decided is not None and position <= half.decided:
                break
            for entry in model.entries(position) or ():
                if entry.half == offset and model.decides(entry, half) and position >= self._applied(model):
                    text = f"half {offset}: its decision at END {position} was stored before it fell due"
                    self._require(None, promise, text)

    def _ends_in_op(self, records: Records, decided: dict[int, int], applied: str) -> None:
        """Check OP as the audit uses it: it names the END entries of its commits, and names held messages apart."""
        for _, stored in records:
            headers = text_headers(stored)
            if headers["OUTCOME"] != "commit":
                continue
            offsets = {int(text) for text in (stored.value or b"").decode().split(",")}
            in_turn = "TXB_ENDS" in headers
            self._require(
                offsets <= decided.keys() if in_turn else offsets.isdisjoint(decided),
                "P14",
                f"OP names {sorted(offsets)} as {'decided here' if in_turn else 'held'}, and END decided {[*decided]}",
            )
            if in_turn:
                told = headers["TXB_ENDS"]
                self._require(told == applied, "P14", f"OP says that END {told} was applied, and {applied} was")
            else:
                self._world.count("held deliveries named apart in OP")

    def _applied(self, model: PartitionModel) -> int:
        checkpoint = self._checkpoint[self.models.index(model)]
        return checkpoint["end"] if checkpoint else 0

    def _ops(self, records: Records, model: PartitionModel, all_expected: dict[str, set[int]]) -> None:
        """Check that OP names what this Kafka transaction did, by outcome."""
        named = {outcome: set[int]() for outcome in all_expected}
        for _, stored in records:
            for text in (stored.value or b"").decode().split(","):
                offset = int(text)
                named[text_headers(stored)["OUTCOME"]].add(offset)
                half = model.half(offset)
                self._require(half, "P10", f"OP names half offset {offset}, where no message stands")
                assert half is not None
                half.op = stored.offset
        for outcome, expected in all_expected.items():
            self._require(
                named[outcome] == expected,
                "P10",
                f"OP names {sorted(named[outcome])} as {outcome}, the same Kafka transaction did {sorted(expected)}",
            )

    def _offset_records(self, number: int, records: Records, witness: Witness, decided: Container[int]) -> None:
        """Check parked entries and tombstones."""
        model, parked = self.models[number], self._parked[number]
        for _, stored in records:
            offset = int((stored.key or b"").rpartition(b"/")[2])
            half, name = model.half(offset), f"half {number}:{offset}"
            assert half is not None
            if stored.value is None:
                if half.state == "discarded":
                    self._require_due(half.due, "P7", f"{name} was forgotten")
                    self._world.count("discard forgotten")
                    half.state = "forgotten"
                self._require(half.is_finished, "P10", f"the parked entry of {name} was removed, it is {half.state}")
                parked.pop(offset, None)
                self._parked_at[number].pop(offset, None)
                continue
            data = parked[offset] = json.loads(stored.value)
            self._parked_at[number][offset] = stored.appended
            self._note_too_large(half, data["size"])
            self._due_later(name, half, data, is_new=offset in decided)
            self._require(data["state"] == half.state, "P10", f"{name} is parked as {data['state']}, is {half.state}")
            if half.state == "discarded":
                half.due = data["next"] - self._world.brokers_ahead
            if half.state == "pending" and "error" in data:
                self._world.count("parked with why it is not checked")
                half.due = data["next"] - self._world.brokers_ahead
            if half.resumed_by is not None and half.state == "pending":
                # The age counts from the owner's draft. The owner takes that for a time after the command was stored.
                half.since, least = (
                    data["resumed"] - self._world.brokers_ahead,
                    half.resumed_by - _LATE - witness.paused,
                )
                good = least <= half.since <= self._world.now or self._world.brokers_were_set
                self._require(good, "P7", f"{name} was resumed at {half.since}, the command came at {half.resumed_by}")
                half.resumed_by = None
            same = (data["id"], data["group"]) == (half.headers["UNIQ_KEY"], half.headers["PGROUP"])
            self._require(same and data["checks"] == half.checks, "P10", f"the parked entry of {name} is wrong: {data}")

    def _due_later(self, name: str, half: Half, data: dict[str, Any], *, is_new: bool) -> None:
        """Check the parked entry of a message that names a time of delivery."""
        good = data.get("deliver") == half.deliver_at
        self._require(good, "P13", f"the parked entry of {name} names another time than {half.deliver_at}: {data}")
        good = data.get("delivered", 0) == len(half.delivered)
        self._require(good, "P3", f"the parked entry of {name} says that {data.get('delivered')} are delivered")
        if data["state"] == "scheduled" and half.state == "held" and is_new:
            half.state = "scheduled"
            good = half.deliver_at is not None
            self._require(good, "P13", f"{name} is scheduled for {data['next']}, and names no time")
            self._world.count("transition pending commit_early")
        elif data["state"] == "held" and half.state == "scheduled":
            half.state = "held"
            assert half.deliver_at is not None
            self._require_due(half.deliver_at, "P13", f"{name} was tried")
            self._require(self._may_be_held(half), "P13", f"{name} is held when it is due, and its topic takes all")
            self._world.count("transition scheduled due_undeliverable")
            if half.delivered:
                self._world.count("held after a step")
        if data["state"] == "scheduled":
            good = data["next"] == half.deliver_at
            self._require(good, "P13", f"{name} is scheduled for {data['next']}, not for {half.deliver_at}")

    def _check_watermark(self, number: int, before: dict[str, Any] | None, new: dict[str, Any]) -> None:
        model, parked = self.models[number], self._parked[number]
        for offset in range(before["half"] if before else 0, new["half"]):
            half = model.half(offset)
            if half is None:
                continue
            good = half.is_finished or offset in parked
            self._require(
                good, "P10", f"the watermark {new['half']} passed half {number}:{offset}, {half.state}, not parked"
            )
        for offset in range(new["half"], model.half_log.high_watermark):
            found = model.halves.get(offset)
            if found is not None and found.op is not None and offset not in parked:
                text = f"OP is replayed from {new['op']}, half {number}:{offset} is named finished at {found.op}"
                self._require(found.op >= new["op"], "P10", text)

    def _check_malformed_ends(self, model: PartitionModel, start: int, end: int) -> None:
        for position in range(start, end):
            if model.entries(position) is None:
                self._require(position in model.set_aside, "P8", f"END {position} is malformed and was not set aside")

    def checkpoint_end(self, number: int) -> int:
        checkpoint = self._checkpoint[number]
        return checkpoint["end"] if checkpoint else 0

    def unfinished(self, undeliverable: set[str], dead_groups: set[str]) -> list[str]:
        """Descriptions of everything that should still happen after faults have stopped."""
        waiting = []
        for number, model in enumerate(self.models):
            end = model.end_of_decisions()
            if self.checkpoint_end(number) < end:
                waiting.append(f"P2: END of {number} is applied up to {self.checkpoint_end(number)}, not to {end}")
            for offset in range(model.half_log.high_watermark):
                half = model.half(offset)
                if half is None:
                    continue
                name = f"half {number}:{offset}"
                if half.is_malformed:
                    if not half.is_set_aside:
                        waiting.append(f"P8: {name} is malformed and not set aside")
                elif half.state == "held":
                    if not self._is_undeliverable(half, undeliverable):
                        waiting.append(f"P2: {name} was committed at END {half.decided} and is not delivered")
                elif half.state == "scheduled":
                    waiting.append(f"P13: {name} was to be delivered at {half.deliver_at} and is not")
                elif half.state == "pending" and half.headers["PGROUP"] not in dead_groups:
                    if self._times.max_age > _SHORT and self._may_stay_unchecked(number, offset, half):
                        continue
                    waiting.append(f"P7: {name} is neither decided nor discarded")
        return waiting

    def _may_stay_unchecked(self, number: int, offset: int, half: Half) -> bool:
        """Whether the check topic takes no check of this message, or none of a smaller one.

        A message of the first kind waits for its greatest age. One of the second kind waits among those that are
        offered once a minute, one after the other: the worker compares whole messages, and the limit here counts only
        values.
        """
        picky = self._cluster.picky.get(self._names.check(half.headers["PGROUP"]))
        if picky == TOO_SMALL:
            least = self._too_large.get(half.headers["PGROUP"], sys.maxsize)
            return self._is_too_large(half) or self._parked[number].get(offset, {}).get("size", 0) >= least
        return picky == WANTS_KEYS and half.stored.key is None

    def _is_too_large(self, half: Half) -> bool:
        return len(half.stored.value or b"") > self._world.max_batch

    def _require_due(self, due: int, promise: str, what: str) -> None:
        """Require that it is due now. Times are the brokers', so after a step of their clock nobody knows."""
        early = due - self._world.now
        self._require(early <= 0 or self._world.brokers_were_set, promise, f"{what} {early} ms early")

    def _note_too_large(self, half: Half, size: int) -> None:
        if self._is_too_large(half):
            group = half.headers["PGROUP"]
            self._too_large[group] = min(size, self._too_large.get(group, size))

    def require_checks(self, since: int, now: int, dead_groups: set[str]) -> None:
        """Require a check of all messages that were due long ago. Faults stopped at `since`. Raises Violation."""
        for number, model in enumerate(self.models):
            refused = sum("error" in one and one["state"] == "pending" for one in self._parked[number].values())
            # A check that was committed during a stall counts its interval from the stall's end and once more for its
            # length: the worker knows only the beginning of the commit (BrokerClock.now_at_latest).
            within = _CHECKED_WITHIN + _REFUSED * refused + self._world.longest_stall
            for offset, half in model.halves.items():
                if half.state != "pending" or half.is_malformed or half.headers["PGROUP"] in dead_groups:
                    continue
                if self._may_stay_unchecked(number, offset, half):
                    continue
                waited = now - max(half.due, since)
                what = f"half {number}:{offset} has been due for a check for {waited // 1000} s, its group is alive"
                is_checked = waited <= within or half.checks >= self._times.max_checks
                self._require(is_checked, "P8", f"{what}, and none was sent")

    def _is_undeliverable(self, half: Half, undeliverable: set[str]) -> bool:
        return any(
            one.topic in undeliverable
            or POISON in (one.value or b"")
            or len(one.value or b"") > self._world.max_batch
            or one.partition == 7
            for one in map(half.messages.__getitem__, half.waiting)
        )

    def check_readers(self, topics: list[Place]) -> None:
        """Compare the real topics, as a read_committed reader sees them, with the decisions. Raises Violation."""
        seen: dict[tuple[int, int], int] = {}
        for place in topics:
            for stored in self._cluster.logs[place].visible(0, 1_000_000, committed=True)[0]:
                partition, _, offset_text = text_headers(stored)["TXB_HALF"].partition(":")
                where = int(partition), int(offset_text)
                seen[where] = seen.get(where, 0) + 1
        for number, model in enumerate(self.models):
            for offset, half in model.halves.items():
                copies = seen.pop((number, offset), 0)
                due = len(half.delivered)
                of_committed = "P3" if copies > due else "P12" if copies else "P2"
                promise = of_committed if half.delivered else "P1"
                text = f"half {number}:{offset} is {half.state}, readers see it {copies} times"
                self._require(copies == due, promise, text)
        self._require(not seen, "P1", f"readers see what was never prepared: {sorted(seen)}")


def _is_copy(half: Half, number: int, topic: str, place: Place, stored: Stored) -> bool:
    """Whether this is the record to which the message should have led."""
    message = half.messages[number]
    users = [header for header in stored.headers if header[0] not in {"UNIQ_KEY", "TXB_HALF", "TXB_MESSAGE"}]
    return (
        (topic, stored.key, stored.value) == (message.topic, message.key, message.value)
        and users == message.headers
        and message.partition in {-1, place[1]}
        and message.timestamp in {-1, stored.timestamp}
    )


def _text(position: tuple[int, int]) -> str:
    return f"{position[0]}:{position[1]}"


def _position(checkpoint: dict[str, Any] | None) -> tuple[int, int]:
    """Position in END at which to go on: offset, and index of the entry in that record."""
    return (checkpoint["end"], checkpoint.get("entry", 0)) if checkpoint else (0, 0)


def _key_rest(one: tuple[Place, Stored], names: Names) -> bytes:
    """The rest of a key of OFFSET after the prefix of all checkpoint keys: `p` or `p/<half offset>`."""
    return (one[1].key or b"")[len(names.half) + len("@CID_RMQ_SYS_TRANS/") :]
