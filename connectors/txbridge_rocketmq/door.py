"""Core of a door, for clients of either protocol. It stores nothing that an answer to a client depends on."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

from txbridge.client.checks.calls import CheckRequest
from txbridge.client.message import MessageExt
from txbridge.core.decision_record import Decision, DecisionEntry, Source
from txbridge.core.names import is_topic, short_id
from txbridge.log import get_logger
from txbridge_rocketmq import identity, mapping
from txbridge_rocketmq.access import LONGEST_LOGGED, AccessKey, RareLines, require_group
from txbridge_rocketmq.codes import CONSUMER_REFUSAL, RequestError, ResponseCode
from txbridge_rocketmq.door_options import DoorMetrics, DoorSetting, spawn_task
from txbridge_rocketmq.groups import ClientCheck, GroupMember, Groups, Join
from txbridge_rocketmq.memory import RequestMemory
from txbridge_rocketmq.outlet import DecisionOutlet, Outlet
from txbridge_rocketmq.requests import ClientDecision
from txbridge_rocketmq.sends import Sends, no_topic
from txbridge_rocketmq.topics import CheckTopics, LookUps, Topics

_log = get_logger("txbridge.rocketmq")


class Door:
    """Core of a door, for the event loop only."""

    def __init__(
        self,
        setting: DoorSetting,
        records: Outlet,
        ends: DecisionOutlet,
        topics: Topics,
        group_look_ups: LookUps,
        check_topics: CheckTopics,
        join: Join,
        metrics: DoorMetrics,
        *,
        memory: int,
        max_groups: int,
    ) -> None:
        self.setting = setting
        self.metrics = metrics
        self.memory = RequestMemory(memory)
        self.groups = Groups(
            group_look_ups, setting.names.check, check_topics, join, self._ask_member, metrics, max_groups
        )
        self.sends = Sends(setting, records, ends, topics, metrics, self.groups.note_transactional)
        self._ends = ends
        self.topics = topics
        self._lines = RareLines()
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Handle a request. `drain` waits for it."""
        return spawn_task(self._tasks, work)

    async def count_queues(self, topic: str, peer: str) -> int:
        """Number of queues of a topic that this client sees. Raises RequestError and NoAnswerError."""
        if not topic:
            raise RequestError(ResponseCode.INVALID_PARAMETER, "topic is missing")
        known = is_topic(topic) and not self.setting.names.is_forbidden(topic)
        count = await self.topics.count_partitions(topic, peer) if known else 0
        if not count:
            raise no_topic(topic)
        return min(count, identity.LARGEST_PARTITION + 1)

    def set_groups(self, member: GroupMember, names: Iterable[str], key: AccessKey | None) -> None:
        """Set the groups of a member: none if its key is no key any more.

        Raises RequestError if a group is refused. The member gets the others all the same, so that a refused group does
        not stop the checks of the process's other groups.
        """
        member.key = key
        good, problem = set(), None
        for name in names if self.setting.access.has_key(key) else ():
            try:
                require_group(key, name)
                mapping.check_group(name, self.setting.names)
            except RequestError as error:
                problem = error
            else:
                good.add(name)
        self.groups.set_groups(member, frozenset(good))
        if problem is not None:
            raise problem

    def refuse_consumer(self, protocol: str, group: str, peer: str) -> None:
        """Count a request of a consumer, and warn of it: most consumers tell their application nothing."""
        self.metrics.consumers_refused.labels(protocol).inc()
        group = group[:LONGEST_LOGGED]
        if self._lines.may_log(peer, group):
            _log.warning("consumer_refused", protocol=protocol, group=group, peer=peer, next=CONSUMER_REFUSAL)

    def drop_strangers(self) -> None:
        """Ask no member any more whose key has changed. With a new one it comes back at its next heartbeat."""
        for member in self.groups.all_members():
            if not self.setting.access.has_key(member.key):
                self.groups.drop_member(member)

    async def send_decision(self, end: ClientDecision, key: AccessKey | None, *, is_awaited: bool) -> None:
        """Send a decision, at once if the client waits for it, and wait until Kafka has it. Raises RequestError."""
        require_group(key, end.group)
        mapping.check_group(end.group, self.setting.names)
        if end.half_partition >= self.setting.partitions:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed: no such half partition"
            )
        transaction = identity.transaction_id(self.setting.secret, end.group, end.uniq_key, end.fingerprint)
        entry = DecisionEntry(end.half_offset, transaction, end.decision, end.check_times, end.remark)
        source = Source.CHECK if end.is_answer else Source.CLIENT
        reason = await self._ends.submit_decision(end.group, end.half_partition, source, entry, is_awaited=is_awaited)
        if reason is not None:
            self.metrics.ends_lost.inc()
            raise RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"Kafka did not accept the END: {reason}")

    def _ask_member(self, group: str, request: CheckRequest, members: list[GroupMember]) -> None:
        """Ask one of the members, preferably the one that has sent the message."""
        message = request.message
        # No door prepares a message without one, so an empty one belongs to no id of a door.
        uniq_key = mapping.uniq_key_of(message) or ""
        which = self.setting.secret, group, uniq_key, message.transaction_id
        if identity.own_fingerprint(identity.delayed_id, *which) is not None:
            self._commit_delayed(group, message)
            return
        fingerprint = identity.own_fingerprint(identity.transaction_id, *which)
        if fingerprint is None:
            self.metrics.checks.labels("not_ours").inc()
            _log.warning(
                "check_of_another_client",
                group=group,
                transaction=short_id(message.transaction_id),
                next="give every kind of client a group of its own, and all doors the same secret",
            )
            return
        born_host = dict(message.headers).get(mapping.BORN_HOST, b"") or b""
        own = [one for one in members if one.peer.encode() == born_host]
        chosen = next((one for one in [*own, *members] if one.takes_checks), None)
        if chosen is None:
            self.metrics.checks.labels("not_sent").inc()
            _log.warning("check_not_sent", group=group, reason="no connection of the group accepts more data")
            return
        chosen.send_check(ClientCheck(group, uniq_key, fingerprint, message))
        self.metrics.checks.labels("sent").inc()

    def _commit_delayed(self, group: str, message: MessageExt) -> None:
        """Commit a delayed message without a local transaction, whose commit got lost. No listener knows it.

        Its client either sends it again, which is the same transaction, or never gets an answer. A commit is right in
        both cases. After a rollback, the client's next attempt would be acknowledged, and the message would be lost.
        Without Kafka's acknowledgement the worker checks again.
        """
        entry = DecisionEntry(message.half_offset, message.transaction_id, Decision.COMMIT, message.check_times)
        answer = self._ends.submit_decision(group, message.half_partition, Source.CHECK, entry, is_awaited=False)
        answer.add_done_callback(lambda done: self.metrics.ends_lost.inc(done.result() is not None))
        self.metrics.checks.labels("answered").inc()

    async def drain_requests(self, patience: float) -> None:
        """Wait up to `patience` seconds until all requests that have begun are answered."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=patience)

    def close(self) -> None:
        """Give up the requests that still wait for Kafka."""
        for task in self._tasks:
            task.cancel()
