"""One run: a seed becomes owners, applications, faults and a schedule. Then faults stop and all must come to rest."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import structlog

from tests.simulator.applications import FLAKY_TOPIC, MAX_DELAY, MISSING_TOPIC, REAL_TOPICS, Application
from tests.simulator.checker import Checker, Violation
from tests.simulator.cluster import TOO_SMALL, WANTS_KEYS, Cluster
from tests.simulator.faults import choose_faults
from tests.simulator.load import choose_load
from tests.simulator.lost_tails import LostTails
from tests.simulator.model import Times
from tests.simulator.process import Process
from tests.simulator.sql_services import GROUP as SQL_GROUP
from tests.simulator.sql_services import sql_services
from tests.simulator.transactional_sender import TransactionalSender
from tests.simulator.world import World
from txbridge.core.check_policy import CheckPolicy
from txbridge.core.names import Names

#: Limits after faults have stopped: time (ms of the world) and turns until all is at rest.
_REST_WITHIN = 240_000
_REST_TURNS = 20_000
#: A large clock error (ms), which may be longer than the greatest age of a message.
_FAR = 73 * 3_600_000
#: Number of applications beside the SQL services.
_APPLICATIONS = 3
#: Number of I/O calls that an owner makes before another may run: mostly few, sometimes enough for a whole take-over.
_FUEL = (1, 1, 2, 3, 4, 6, 8, 12, 20, 60)


@dataclass(slots=True)
class Result:
    """Result of one run."""

    seed: int
    violation: str | None
    digest: str
    counters: dict[str, int]
    io_calls: int
    tail: list[str]


class Simulation:
    """State of one run."""

    def __init__(
        self,
        seed: int,
        steps: int = 200,
        *,
        keep_trace: bool = False,
        more_faults: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        self.world = world = World(seed, keep_trace=keep_trace)
        self.steps = steps
        self.names = Names()
        chance = world.random
        self.partitions = 2 if chance.random() < 0.2 else 1
        self.load = load = choose_load(seed)
        self.policy = CheckPolicy(
            transaction_timeout=20_000 if load.is_plain else 1_000,
            transaction_check_interval=1_000,
            transaction_check_max=chance.choice((1, 2, 3)),
            transaction_max_age=chance.choice((6_000, 3_600_000, 3_600_000)),
            park_after_records=chance.choice((2, 5, 100_000)) if not load.is_plain else chance.choice((20, 100_000, 9)),
            park_after=max(chance.choice((500, 30_000)), 20_000 * load.is_plain),
            discard_retention=chance.choice((4_000, 3_600_000)),
            longest_delay=MAX_DELAY,
            # With 10,000 alone no copy would be too old to be recognised, because a run has few messages.
            recognise_at_least=world.side("copies").choice((1, 10_000)),
        )
        self._check_rate = chance.choice((2, 1_000, 1_000))
        self._create_topics()
        world.link = load.link
        if load.is_heavy:
            # Paddings are in headers: a larger value would not mean a larger message.
            world.max_batch = sys.maxsize
        self.applications = [
            Application(world, self.names, f"app{number}", f"group{number % 2}", self.partitions, load)
            for number in range(_APPLICATIONS)
        ]
        self.stranger = TransactionalSender(world, self.names, self.applications)
        times = Times(
            self.policy.transaction_timeout,
            self.policy.transaction_check_interval,
            self.policy.transaction_check_max,
            self.policy.transaction_max_age,
            self.policy.discard_retention,
            MAX_DELAY,
        )
        self.checker = Checker(world, self.names, self.partitions, times)
        self.lost_tails = LostTails(world, self.names)
        self.processes: list[Process] = []
        self._started = 0
        #: Workers that serve before the group has made an assignment.
        self._assumed: list[Process] = []
        #: By partition: the owner that the group names, and the END events that Faust still has to hand over.
        self.assigned: list[Process | None] = [None] * self.partitions
        self.events: list[deque[int]] = [deque() for _ in range(self.partitions)]
        self._told_end = [0] * self.partitions
        self.unexpected: str | None = None
        self._is_resting = False
        self._operator = self.world.side("operator")
        self._dead_groups: set[str] = set()
        choose_faults(world)
        if load.is_plain and "half message sent twice" in world.faults:
            # Rare here, as in reality: a copy makes the worker read all records of its batch one by one.
            world.faults["half message sent twice"] /= 10
        world.faults.update(more_faults)
        # After the stranger has got its applications: it decides against what they know.
        self.applications = [*self.applications, *sql_services(world, self.names, self.partitions, load)]
        if len(self.applications) > _APPLICATIONS:
            world.cluster.create_topic(self.names.check(SQL_GROUP), 1)

    def _create_topics(self) -> None:
        cluster: Cluster = self.world.cluster
        names = self.names
        for topic in (names.half, names.end, names.op, names.offset):
            cluster.create_topic(topic, self.partitions)
        for topic, partitions in {**REAL_TOPICS, FLAKY_TOPIC: 1, names.discard: 1}.items():
            cluster.create_topic(topic, partitions)
        for group in ("group0", "group1"):
            cluster.create_topic(names.check(group), 1)
        chance = self.world.side("check topics")
        if chance.random() < 0.3:
            cluster.picky[names.check("group0")] = chance.choice((TOO_SMALL, WANTS_KEYS))
        cluster.shows_configs = self.world.side("configs").random() < 0.5

    def run(self) -> Result:
        """Do the whole run. A violation is in the result."""
        world = self.world
        structlog.configure(processors=[cast(Any, self._on_log)], cache_logger_on_first_use=False)
        violation: str | None = None
        try:
            self._update_members()
            for number in range(max(self.steps, self.load.outage + 1)):
                if number == self.load.outage:
                    self._start_owners()
                self.step()
                self.look()
            self._stop_faults()
            self._come_to_rest()
        except Violation as found:
            violation = str(found)
            world.trace(f"VIOLATION {violation}")
        finally:
            for process in self.processes:
                process.actor.crash()
        io_calls = sum(process.actor.io_calls for process in self.processes)
        return Result(world.seed, violation, world.digest, dict(world.counters), io_calls, list(world.tail))

    def _on_log(self, _logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        """Write the worker's log lines into the trace."""
        name = event["event"]
        if name == "refused" and self.lost_tails.refused(event["partition"]):
            self.world.count("lost tail refused")
        else:
            self.world.count(f"log {name}")
        if name == "end_refused":
            self.world.count(f"refusal {event['reason']}")
            if event["reason"] == "no_half_message":
                self.checker.refused_as_absent(event["partition"], event["half_offset"])
        if name == "unexpected_error":
            self.unexpected = repr(event.get("exc_info"))
        error = event.get("error")
        self.world.trace(f"  log {name} {'' if error is None else error}")
        raise structlog.DropEvent

    def look(self) -> None:
        """Raise the checker's violation, if there is one."""
        if self.checker.violation is not None:
            raise self.checker.violation
        if self.unexpected is not None:
            raise Violation(f"unexpected error in the worker: {self.unexpected}")

    def _start_owners(self) -> None:
        for partition, process in enumerate(self.assigned):
            if process is None or process.actor.has_ended:
                self.start_owner(partition)

    def start_owner(self, partition: int) -> None:
        """Start a worker and assign the partition to it. The former owner may not know yet."""
        self._assign(partition, self._start_process(partition))
        self.world.trace(f"{self.processes[-1].name}: starts, partition {partition}")

    def _assign(self, partition: int, process: Process | None) -> None:
        before, self.assigned[partition] = self.assigned[partition], process
        if before is not None:
            before.is_assigned = False
        if process is not None:
            process.is_assigned = True
        # Faust begins at its own commit or at the end, so anywhere.
        self.events[partition].clear()
        self._told_end[partition] = self.world.cluster.logs[self.names.end, partition].last_stable_offset

    def _start_process(self, partition: int) -> Process:
        self._started += 1
        process = Process(
            self.world,
            self.names,
            self.policy,
            partition,
            f"w{self._started}",
            self._check_rate,
            self.load.limits,
            self.load.payload_memory,
            self.load.commit_interval,
            lambda: min(self.events[partition], default=self._told_end[partition]),
        )
        self.checker.witnesses[process.name] = process.witness
        self.processes.append(process)
        return process

    def _turn_of(self, process: Process) -> None:
        process.actor.run(self.world.random.choice(_FUEL))

    def crash(self, process: Process) -> None:
        self.world.trace(f"{process.name}: crashes")
        process.actor.crash()
        if self.assigned[process.partition] is process:
            self.assigned[process.partition] = None

    def step(self) -> None:
        """Take one choice of the scheduler."""
        world, chance = self.world, self.world.random
        world.cluster.expire_transactions()
        self.stranger.act()
        self._tell_events()
        self._update_members()
        options: list[tuple[int, Callable[[], None]]] = []
        runnable = [process for process in self.processes if process.actor.is_runnable]
        options.extend((32, partial(self._turn_of, process)) for process in runnable)
        options.append((24, self._application_acts))
        senders = [one for one in self.applications if one.outgoing]
        if senders:
            options.append((24, lambda: self._deliver_outgoing(chance.choice(senders))))
        if world.late_requests:
            options.append((3, self._late_request))
        markers = world.cluster.markers_due()
        if markers:
            options.append((24, lambda: world.cluster.write_marker(*chance.choice(markers))))
        if any(self.events):
            options.append((12, self._offer))
        if any(lost.was_refused for lost in world.lost_tails.values()):
            options.append((8, self._restore))
        options.append((8, lambda: self._pass_time(chance.choice((50, 50, 200, 200, 800, 800, 3_000, 70_000)))))
        for weight, name, act in self._mishaps():
            if name in world.faults:
                options.append((weight, act))
        pick = chance.randrange(sum(weight for weight, _ in options))
        for weight, act in options:
            pick -= weight
            if pick < 0:
                act()
                return

    def _application_acts(self) -> None:
        chance = self.world.random
        application = chance.choice(self.applications)
        if not application.is_alive:
            if chance.random() < 0.3:
                application.come_back()
            return
        pick = chance.random()
        if pick < 0.4:
            topic = chance.choice(("orders", "orders", "stock", "stock", FLAKY_TOPIC, MISSING_TOPIC))
            application.prepare(topic)
            for _ in range(self.load.random.choice((0, 1, 3)) if self.load.is_plain else 0):
                application.prepare(self.load.random.choice(("orders", "stock")))
        elif pick < 0.65:
            application.decide()
        elif pick < 0.80:
            application.answer_checks()
        elif pick < 0.90:
            application.decide_again()
        elif pick < 0.96:
            application.forge()
        elif self._operator.random() < 0.6:
            application.resume()
        else:
            application.abandon()

    def _deliver_outgoing(self, application: Application) -> None:
        place, record, acknowledged = application.outgoing.popleft()
        if application.is_given_up(record):
            return
        offset = self.world.cluster.append_plain(place, record)
        self.world.trace(f"{application.name}: {place[0]}[{place[1]}] has it at {offset}")
        if place[0] == self.names.half and self.world.strikes("half message sent twice"):
            # The idempotent producer has a new epoch. It may know the first offset already, or learn only the second
            # one.
            outgoing = application.outgoing
            outgoing.insert(self.world.random.randrange(len(outgoing) + 1), (place, record, acknowledged))
            if self.world.random.random() < 0.5:
                return
        if not self.world.strikes("acknowledgement lost"):
            acknowledged(offset)
        self._tell_events()

    def _tell_events(self) -> None:
        """Collect the events that Faust has to hand over. Faust reads committed records."""
        for partition in range(self.partitions):
            log = self.world.cluster.logs[self.names.end, partition]
            records, end = log.visible(self._told_end[partition], sys.maxsize, committed=True)
            self.events[partition].extend(stored.offset for stored in records)
            self._told_end[partition] = end

    def _late_request(self) -> None:
        requests = self.world.late_requests
        what, effect = requests.pop(self.world.random.randrange(len(requests)))
        self.world.count(f"late {what}")
        self.world.trace(f"a late {what} arrives")
        effect()

    def _offer(self) -> None:
        """Hand over an END event: the next one, or another nearby."""
        chance = self.world.random
        partition = chance.choice([number for number, events in enumerate(self.events) if events])
        events, process = self.events[partition], self.assigned[partition]
        if self.world.strikes("END event skipped"):
            events.popleft()
            if process is not None and not process.actor.is_dead:
                process.miss_events()
            return
        if len(events) > 1 and self.world.strikes("END event out of order"):
            events.rotate(-1)
        offset = events[0] if self.world.strikes("END event repeated") else events.popleft()
        stored = self.world.cluster.logs[self.names.end, partition].entries[offset]
        if process is not None and not process.actor.is_dead:
            process.tell(offset, stored)

    def _pass_time(self, milliseconds: int) -> None:
        """Let time pass, until the next process wakes up or further."""
        wakes = [one.actor.waits_until for one in self.processes if one.actor.waits_until and not one.actor.has_ended]
        nearest = min(wakes, default=self.world.now)
        before = self.world.now
        self.world.now = max(before + 1, min(nearest, before + milliseconds))
        if not self._is_resting and self.world.random.random() < 0.3:
            self.world.now += milliseconds
        if not self._is_resting:
            self.world.longest_stall = max(self.world.longest_stall, self.world.now - before)
        for process in self.processes:
            # The machine hung meanwhile: its processes could not notice what has become old.
            if not process.actor.is_paused and self.world.now - before > 10_000:
                process.witness.paused += self.world.now - before

    def _update_members(self) -> None:
        for group in {one.group: None for one in self.applications}:
            self.world.cluster.members[self.names.check(group)] = sum(
                one.is_alive or (one.dies_for_the_group_at or 0) > self.world.now
                for one in self.applications
                if one.group == group
            )

    def _mishaps(self) -> list[tuple[int, str, Callable[[], None]]]:
        return [
            (1, "crash", self._mishap_crash),
            (1, "pause", self._mishap_pause),
            (2, "pause", self._resume_zombie),
            (1, "rebalance", self._mishap_rebalance),
            (1, "group without members", self._mishap_group_without_members),
            (2, "group without members", self._assign_first),
            (1, "clock jump", self._mishap_clock),
            (1, "topic gone", self._mishap_topic),
            (1, "application death", self._mishap_death),
            (2, "former leader", self._mishap_former_leader),
            (1, "leader cut off", self._mishap_leader_cut_off),
            (1, "OFFSET lost its tail", partial(self._mishap_lost_tail, "OFFSET")),
            (1, "OP lost its tail", partial(self._mishap_lost_tail, "OP")),
            (1, "brokers' clock set", self._mishap_brokers_clock),
            (2, "no room for a marker", self._mishap_no_room),
        ]

    def _living(self) -> list[Process]:
        return [one for one in self.processes if not one.actor.has_ended]

    @staticmethod
    def _is_taking_over(process: Process) -> bool:
        return process.actor.io_calls > 0 and not process.owner.status.serving

    def _mishap_crash(self) -> None:
        living = self._living()
        if living:
            process = self.world.random.choice(living)
            self.world.count("fault crash")
            if self._is_taking_over(process):
                self.world.count("fault crash in a take-over")
            self.crash(process)
            if self.assigned[process.partition] is None:
                self.start_owner(process.partition)

    def _mishap_pause(self) -> None:
        running = [one for one in self._living() if not one.actor.is_paused]
        if running:
            process = self.world.random.choice(running)
            self.world.count("fault pause")
            self.world.trace(f"{process.name}: is paused")
            process.actor.is_paused = True
            process.paused_at = self.world.now
            if self.world.random.random() < 0.6:
                # Its session times out and another owner takes over. It is a zombie once it is resumed.
                self.start_owner(process.partition)

    def _resume_zombie(self) -> None:
        paused = [one for one in self._living() if one.actor.is_paused]
        if paused:
            self._resume(self.world.random.choice(paused))

    def _resume(self, process: Process) -> None:
        if self.assigned[process.partition] is not process:
            self.world.count("fault zombie resumed")
            if self._is_taking_over(process):
                self.world.count("fault zombie goes on with its take-over")
        self.world.trace(f"{process.name}: is resumed")
        process.actor.is_paused = False
        process.witness.paused += self.world.now - process.paused_at

    def _mishap_rebalance(self) -> None:
        """Start another owner while the former still works. That one is told to stop, sooner or later."""
        if len(self._living()) > 3:
            # Those that have assumed a partition may still get it.
            left = [one for one in self._living() if one not in self._assumed]
            stale = [one for one in left if self.assigned[one.partition] is not one]
            if stale:
                self.world.trace(f"{stale[0].name}: is told to stop")
                stale[0].stop()
            return
        self.world.count("fault rebalance")
        self.start_owner(self.world.random.randrange(self.partitions))

    def _mishap_group_without_members(self) -> None:
        """Start workers that have found the group without a member, and so serve before it has assigned anything.

        Nobody has the partition then, or another has got it just now.
        """
        if len(self._living()) > 3:
            return
        side = self.world.side(f"no members at {self.world.now}")
        partition, count = side.randrange(self.partitions), side.choice((1, 2))
        self.world.count("fault group without members")
        if count > 1:
            self.world.count("workers that assume at once")
        if side.random() < 0.5:
            self._assign(partition, None)
        elif self.assigned[partition] is not None:
            self.world.count("worker that assumes what another has")
        for _ in range(count):
            process = self._start_process(partition)
            process.is_assigned = False
            self.world.trace(f"{process.name}: starts, assumes partition {partition}")
            self._assumed.append(process)

    def _assign_first(self) -> None:
        """Make the first assignment after that: to one of the workers, unless another has the partition already."""
        for process in self._assumed:
            if process.actor.has_ended:
                continue
            if self.assigned[process.partition] is None:
                self.world.count("assumed partition assigned")
                self.world.trace(f"{process.name}: is assigned what it has assumed")
                self._assign(process.partition, process)
            else:
                self.world.trace(f"{process.name}: is assigned nothing")
                process.stop()
        self._assumed.clear()

    def _mishap_clock(self) -> None:
        living = self._living()
        if living:
            process = self.world.random.choice(living)
            milliseconds = self.world.random.choice((-_FAR, -5_000, -700, 700, 5_000, _FAR))
            self.world.count("fault clock jump")
            if abs(milliseconds) == _FAR:
                self.world.count("fault clock far off")
            self.world.trace(f"{process.name}: its clock jumps by {milliseconds} ms")
            process.jump(milliseconds)

    def _mishap_brokers_clock(self) -> None:
        """Let the brokers' clock step: ahead, further ahead, or back. A memory of one id would lose copies."""
        ahead = self.world.side(f"brokers' clock at {self.world.now}").choice((0, 50_000, 600_000, -50_000))
        if ahead != self.world.brokers_ahead and self.policy.recognise_at_least > 1:
            self.world.count("fault brokers' clock set")
            self.world.trace(f"the brokers' clock is {ahead} ms ahead from now on")
            self.world.brokers_ahead, self.world.brokers_were_set = ahead, True
            self.world.brokers_were_ahead = max(self.world.brokers_were_ahead, ahead)

    def _mishap_topic(self) -> None:
        hidden = self.world.cluster.hidden
        if FLAKY_TOPIC in hidden:
            hidden.remove(FLAKY_TOPIC)
        else:
            hidden.add(FLAKY_TOPIC)
            self.world.refused.add(FLAKY_TOPIC)
            self.world.count("fault topic gone")

    def _mishap_no_room(self) -> None:
        """Lower max.message.bytes of a topic below Kafka's transaction marker, or raise it again."""
        cluster, names = self.world.cluster, self.names
        if cluster.endless or not cluster.shows_configs:
            cluster.endless.clear()
            return
        topic = self.world.random.choice((FLAKY_TOPIC, names.check("group0"), names.op, names.offset, names.discard))
        cluster.endless[topic] = self.world.now
        self.world.refused.add(topic)
        self.world.count("fault no room for a marker")

    def _mishap_death(self) -> None:
        alive = [one for one in self.applications if one.is_alive]
        if alive:
            self.world.count("fault application death")
            self.world.random.choice(alive).die()

    def _mishap_former_leader(self) -> None:
        """Elect a new leader of a log. For a moment readers still ask the former one, which lacks new records."""
        chance, names = self.world.random, self.names
        place = (chance.choice((names.half, names.half, names.op, names.offset)), chance.randrange(self.partitions))
        self._has_former_leader(place, chance.choice((200, 1_000, 4_000)))
        side = self.world.side(f"another former leader at {self.world.now}")
        if side.random() < 0.5:
            place = (names.op, side.randrange(self.partitions))
            self._has_former_leader(place, side.choice((200, 1_000, 4_000)), side.choice((0, 2, 4)))
        else:
            # A client that asks for the end of END has metadata of at most a second, and uses an answer for at most
            # two.
            self._has_former_leader((names.end, side.randrange(self.partitions)), side.choice((200, 1_000, 3_000)))

    def _mishap_leader_cut_off(self) -> None:
        """As above, but clients still reach the former leader for long, and believe it all the time."""
        names, side = self.names, self.world.side(f"a leader cut off at {self.world.now}")
        place = (side.choice((names.half, names.half, names.end)), side.randrange(self.partitions))
        self._has_former_leader(place, side.choice((6_000, 15_000, 40_000)))
        self.world.count("fault leader cut off")

    def _has_former_leader(self, place: tuple[str, int], milliseconds: int, lacks: int = 0) -> None:
        """Let readers ask a broker for so long that lacks the last records and all new ones."""
        if place in self.world.lost_tails:
            return
        end = max(0, self.world.cluster.logs[place].high_watermark - lacks)
        until = self.world.now + milliseconds
        self.world.former_leaders[place] = (end, until)
        self.world.former_ends.append((place, end, until))
        self.world.count("fault former leader")
        self.world.trace(f"the former leader of {place[0]} answers with end {end}")

    def _mishap_lost_tail(self, short: str) -> None:
        """Elect a replica that was not in sync. Owners go on, or die with the machine."""
        side = self.world.side(f"a lost tail at {self.world.now}")
        partition = side.randrange(self.partitions)
        if self.world.has_lost_tail(partition):
            return
        lose = self.lost_tails.lose_offset if short == "OFFSET" else self.lost_tails.lose_op
        if lose(partition):
            self.world.count(f"fault {short} lost its tail")
            if side.random() < 0.5:
                self._restart_owners(partition)

    def _restart_owners(self, partition: int) -> None:
        for process in self._living():
            if process.partition == partition:
                self.crash(process)
        self.start_owner(partition)

    def _restore(self) -> None:
        self.lost_tails.restore()

    def _stop_faults(self) -> None:
        world = self.world
        world.trace("faults stop")
        self._is_resting = True
        world.faults.clear()
        world.cluster.hidden.clear()
        world.cluster.endless.clear()
        world.former_leaders.clear()
        # NTP sets the brokers' clock right.
        world.brokers_ahead = 0
        self.stranger.end(commit=False)
        for place, lost in world.lost_tails.items():
            if not lost.was_refused:
                # An owner that has nothing to write does not notice the loss.
                self._restart_owners(place[1])
        for process in self._living():
            # An operator sets the clock right, except for a few seconds.
            process.skew = max(min(process.skew, 0), -5_000)
            if process.actor.is_paused:
                self._resume(process)
            if self.assigned[process.partition] is not process:
                process.stop()
        self._start_owners()
        dead = "group1" if world.random.random() < 0.15 else None
        for application in self.applications:
            if application.group == dead:
                if application.is_alive:
                    application.die()
            elif not application.is_alive:
                application.come_back()
        if dead:
            self._dead_groups.add(dead)

    def _come_to_rest(self) -> None:
        """Run all processes until no work is left. Raises Violation when that takes too long."""
        world = self.world
        stopped, waiting = world.now, list[str]()
        for turn in range(_REST_TURNS):
            self._rest_turn(turn)
            self.look()
            # Without an operator's restoration of a log, nothing can be served.
            since = max(stopped, self.lost_tails.served_from)
            # The greatest age counts from the birth, by the clock that was ahead.
            deadline = since + _REST_WITHIN + world.brokers_were_ahead
            if turn % 4 == 0 and not world.late_requests and not any(one.outgoing for one in self.applications):
                waiting = self.lost_tails.unnoticed() or self.checker.unfinished({MISSING_TOPIC}, self._dead_groups)
                self.checker.require_checks(since, world.now, self._dead_groups)
                if not waiting and not world.cluster.markers_due():
                    break
            if world.now > deadline:
                break
        if waiting:
            raise Violation(f"{waiting[0]} after {(world.now - since) // 1000} s without faults")
        places = [place for place in world.cluster.logs if place[0] in {*REAL_TOPICS, FLAKY_TOPIC}]
        self.checker.check_readers(places)

    def _rest_turn(self, turn: int) -> None:
        world = self.world
        world.cluster.expire_transactions()
        self._update_members()
        ran = False
        for process in self.processes:
            if process.actor.is_runnable:
                process.actor.run(100)
                ran = True
        for coordinated, place in world.cluster.markers_due():
            world.cluster.write_marker(coordinated, place)
            ran = True
        if turn % 3 == 0:
            for application in self.applications:
                if application.is_alive:
                    application.answer_checks(is_final=True)
                while application.outgoing:
                    self._deliver_outgoing(application)
                    ran = True
        while world.late_requests:
            self._late_request()
        if self.lost_tails.restore():
            ran = True
        if not ran:
            # No process can act now: long waits pass at once, short ones as on a busy machine.
            self._pass_time(60_000)
            world.now += 400
