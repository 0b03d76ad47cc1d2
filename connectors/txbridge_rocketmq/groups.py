"""Connected producer groups. While a group with transactions is connected, the door receives its checks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from txbridge.client.checks.calls import CheckRequest
from txbridge.client.checks.consumer import CheckConsumer
from txbridge.client.message import MessageExt
from txbridge.errors import TxBridgeError
from txbridge.kafka.admin import UnwantedError
from txbridge.log import get_logger
from txbridge_rocketmq.access import AccessKey
from txbridge_rocketmq.door_options import DoorMetrics, spawn_task
from txbridge_rocketmq.topics import MAX_NAMES, CheckTopics, LookUps, NoAnswerError

#: Shortest time (s) between two look-ups of a group of plain producers: another door may have created its check
#: topic. Clients introduce themselves every 30 s; with the same time here, each second look-up would come too early.
_LOOK_EVERY_S = 20.0
#: Pause (s) after the door could not join a group, or look groups up. A first check comes after six seconds.
_RETRY_S = 2.0
#: Pause (s) while the door is in as many groups as it may be. It leaves one now and then.
_FULL_S = 30.0
#: Connected groups, of which each takes half a KiB. Beyond it a group is noticed only once it has sent a transaction
#: here. One service has one group, or a few; more than this are made up, a new one for each producer perhaps.
_MAX_CONNECTED = 50_000
#: Groups that are joined or left at a time. Kafka takes milliseconds for it, or seconds while it creates a topic.
_THREADS = 4
#: Time-out for leaving a group (s). It takes milliseconds if Kafka answers.
_LEAVE_GROUP_S = 3.0
#: Time (s) for leaving all groups at the end. The consumers leave side by side, in milliseconds if Kafka answers.
_LEAVE_S = 4.0

_log = get_logger("txbridge.rocketmq")


@dataclass(frozen=True, slots=True)
class ClientCheck:
    """A check for one client: what became of its local transaction?"""

    group: str
    #: The client's id of the transaction.
    uniq_key: str
    #: The part of the transaction id that the client brings back.
    fingerprint: str
    message: MessageExt


class GroupMember(Protocol):
    """A client that can be asked about the transactions of its groups."""

    groups: frozenset[str]
    #: The access key by which it has its groups.
    key: AccessKey | None

    @property
    def peer(self) -> str:
        """Its address, as in the header of the messages that it sends."""
        ...

    @property
    def takes_checks(self) -> bool: ...

    def send_check(self, question: ClientCheck) -> None: ...


#: Takes a check, and the function to call when it is settled. Called in the consumer's thread.
Taker = Callable[[CheckRequest, Callable[[], None]], None]
#: Joins a group; blocks until it is a member, or the function returns true. Raises TxBridgeError.
Join = Callable[[str, Taker, Callable[[], bool]], CheckConsumer]
#: Sends a check of a group to one of these members, which are in the order in which they are preferred.
Ask = Callable[[str, CheckRequest, list[GroupMember]], None]


@dataclass(slots=True)
class _ConnectedGroup:
    members: dict[GroupMember, None] = field(default_factory=dict)
    is_transactional: bool = False
    looked: float = -_LOOK_EVERY_S
    membership: CheckConsumer | None = None
    task: asyncio.Task[None] | None = None
    #: Checks that came when no member was left. They are dropped when the door leaves, so that other doors get them.
    waiting: list[tuple[CheckRequest, Callable[[], None]]] = field(default_factory=list)
    next_member: int = 0


@dataclass(eq=False)
class Groups:
    """The connected groups of a door, for the event loop only. Joining and leaving run in threads."""

    _look_ups: LookUps
    _check_topic: Callable[[str], str]
    _topics: CheckTopics
    _join: Join
    _ask: Ask
    _metrics: DoorMetrics
    _most: int

    def __post_init__(self) -> None:
        self._groups: dict[str, _ConnectedGroup] = {}
        #: Groups that are to be looked up. Few requests serve many: clients may have any number of groups.
        self._unseen: dict[str, None] = {}
        self._looking: asyncio.Task[None] | None = None
        self._is_full = False
        self._tasks: set[asyncio.Task[None]] = set()
        #: Joined groups, and those that are being joined.
        self._joined = 0
        self._closing = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="txbridge-groups")

    def set_groups(self, member: GroupMember, names: frozenset[str]) -> None:
        """Set the groups of a member. Clients repeat this every half minute or more often."""
        for gone in member.groups - names:
            self._remove_member(member, gone)
        member.groups = self._names_with_room(names)
        for name in member.groups:
            group = self._groups.setdefault(name, _ConnectedGroup())
            group.members[member] = None
            if self._topics.knows_group(name):
                group.is_transactional = True
            if group.is_transactional:
                self._hand_out(name, group)
                self._join_or_leave(name, group)
            elif time.monotonic() - group.looked >= _LOOK_EVERY_S and not self._closing.is_set():
                group.looked = time.monotonic()
                self._unseen[name] = None
                if self._looking is None:
                    self._looking = spawn_task(self._tasks, self._look_up_names())

    def _names_with_room(self, names: frozenset[str]) -> frozenset[str]:
        """The groups that are noticed: all, unless too many are connected."""
        room = _MAX_CONNECTED - len(self._groups)
        if len(names) <= room:
            self._is_full = False
            return names
        if not self._is_full:
            self._is_full = True
            _log.error(
                "too_many_plain_groups",
                most=_MAX_CONNECTED,
                next="any other group is noticed when it sends a transaction here",
            )
        known = {name for name in names if name in self._groups or self._topics.knows_group(name)}
        return frozenset(known | set(sorted(names - known)[: max(0, room)]))

    def leave_group(self, member: GroupMember, name: str) -> None:
        """Remove the member from one group, whose producer has unregistered."""
        if name in member.groups:
            member.groups -= {name}
            self._remove_member(member, name)

    def drop_member(self, member: GroupMember) -> None:
        """Remove the member from all its groups."""
        for name in member.groups:
            self._remove_member(member, name)
        member.groups = frozenset()

    async def note_transactional(self, name: str) -> str:
        """Note that the group sends a transaction, so that checks will come. Returns why it can get none."""
        refusal = await self._topics.ensure_topic(name)
        group = self._groups.get(name)
        if not refusal and group is not None and not group.is_transactional:
            group.is_transactional = True
            self._join_or_leave(name, group)
        return refusal

    def all_members(self) -> set[GroupMember]:
        return {member for group in self._groups.values() for member in group.members}

    def members_of(self, name: str) -> list[GroupMember]:
        """The connected members of a group."""
        return list(self._groups[name].members) if name in self._groups else []

    async def close(self) -> None:
        """Leave all groups. Takes _LEAVE_S at most."""
        self._closing.set()
        self._unseen.clear()
        for name, group in list(self._groups.items()):
            if group.membership is not None:
                group.membership.stop()
            self._join_or_leave(name, group)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_LEAVE_S)
        self._look_ups.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _remove_member(self, member: GroupMember, name: str) -> None:
        group = self._groups[name]
        group.members.pop(member, None)
        self._join_or_leave(name, group)

    async def _look_up_names(self) -> None:
        """Count the groups that have a check topic as transactional."""
        try:
            while self._unseen:
                names = list(islice(self._unseen, MAX_NAMES))
                try:
                    found = await self._look_ups.ask_kafka([self._check_topic(name) for name in names])
                except NoAnswerError:
                    await self._wait_unless_closing(_RETRY_S)
                    continue
                for name in names:
                    self._unseen.pop(name, None)
                    group, count = self._groups.get(name), found[self._check_topic(name)]
                    if group is not None and isinstance(count, int) and count:
                        group.is_transactional = True
                        self._join_or_leave(name, group)
        finally:
            self._looking = None

    def _join_or_leave(self, name: str, group: _ConnectedGroup) -> None:
        """Let the door join or leave the group if it has to."""
        if group.task is None:
            if self._is_wanted(group) == (group.membership is not None):
                self._forget_if_unused(name, group)
                return
            group.task = spawn_task(self._tasks, self._reconcile_membership(name, group))

    def _is_wanted(self, group: _ConnectedGroup) -> bool:
        return group.is_transactional and bool(group.members) and not self._closing.is_set()

    async def _reconcile_membership(self, name: str, group: _ConnectedGroup) -> None:
        try:
            while self._is_wanted(group) != (group.membership is not None):
                if group.membership is not None:
                    await self._leave_group(name, group)
                elif self._joined >= self._most:
                    _log.error("too_many_groups", group=name, most=self._most, next="its checks are not answered here")
                    await self._wait_unless_closing(_FULL_S)
                else:
                    await self._join_group(name, group)
        finally:
            group.task = None
        self._forget_if_unused(name, group)

    async def _join_group(self, name: str, group: _ConnectedGroup) -> None:
        loop = asyncio.get_running_loop()

        def take(request: CheckRequest, settled: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(self._take_check, name, group, request, settled)

        try:
            with self._place_of(group):
                group.membership = await loop.run_in_executor(
                    self._threads, self._join, name, take, self._closing.is_set
                )
        except UnwantedError:
            pass
        except Exception as error:  # noqa: BLE001  nobody else would join the group
            defect = None if isinstance(error, TxBridgeError) else error
            _log.error("group_not_joined", group=name, error=str(error), next="trying again", exc_info=defect)
            await self._wait_unless_closing(_RETRY_S)
        else:
            self._metrics.groups.inc()
            _log.info("group_joined", group=name, connections=len(group.members))

    @contextlib.contextmanager
    def _place_of(self, group: _ConnectedGroup) -> Iterator[None]:
        """A place among the joined groups, as long as it is being joined or left, and while there is a membership."""
        self._joined += group.membership is None
        try:
            yield
        finally:
            self._joined -= group.membership is None

    async def _wait_unless_closing(self, seconds: float) -> None:
        """Wait, but no longer than until `close`."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _leave_group(self, name: str, group: _ConnectedGroup) -> None:
        with self._place_of(group):
            membership, group.membership = group.membership, None
            assert membership is not None
            await asyncio.get_running_loop().run_in_executor(self._threads, membership.close, _LEAVE_GROUP_S)
        group.waiting.clear()
        self._metrics.groups.dec()
        _log.info("group_left", group=name)

    def _forget_if_unused(self, name: str, group: _ConnectedGroup) -> None:
        if not group.members and group.membership is None and group.task is None:
            self._groups.pop(name, None)
            self._unseen.pop(name, None)

    def _take_check(
        self, name: str, group: _ConnectedGroup, request: CheckRequest, settled: Callable[[], None]
    ) -> None:
        group.waiting.append((request, settled))
        self._hand_out(name, group)

    def _hand_out(self, name: str, group: _ConnectedGroup) -> None:
        while group.waiting and group.members:
            request, settled = group.waiting.pop(0)
            members = list(group.members)
            first = group.next_member % len(members)
            group.next_member += 1
            try:
                self._ask(name, request, members[first:] + members[:first])
            except Exception as error:  # noqa: BLE001  the next check may be better
                self._metrics.checks.labels("not_sent").inc()
                _log.error("check_not_sent", group=name, reason="the door failed", exc_info=error)
            finally:
                settled()
