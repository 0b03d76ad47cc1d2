"""`txbridge pending | resolve | resume` on a real Kafka: the output, the records written, and their effects."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.command_line import run_txbridge
from tests.support.harness import COMMIT, ROLLBACK, UNKNOWN, Bridge, Prepared, eventually
from txbridge.config.worker import WorkerSettings
from txbridge.core.states import TransactionState
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.operations import (
    Action,
    Connection,
    NextStep,
    OpenMessage,
    Result,
    Selection,
    commands,
    list_discarded,
    list_pending,
    read_history,
    resolve,
)
from txbridge.operations.listing import FinishedError
from txbridge.topics.verify import LayoutError

ALL = Selection(states=frozenset({TransactionState.PENDING, TransactionState.HELD, TransactionState.DISCARDED}))
WORDS = {"reason": "order 42 was paid, see ticket 7: 100 %", "operator": "alice"}
#: Few and short checks: one, and the discard after it.
ONE_CHECK = {"transaction_timeout": 200, "transaction_check_interval": 300, "transaction_check_max": 1}


def connect(bridge: Bridge, **options: Any) -> Connection:
    """A connection with the options of the harness's workers."""
    settings = {
        "transaction_timeout": 1_000,
        "transaction_check_interval": 1_000,
        "transaction_check_max": 3,
        **options,
    }
    return Connection.open(
        WorkerSettings(bootstrap_servers=bridge.bootstrap_servers, namespace=bridge.namespace, **settings)
    )


def where(prepared: Prepared) -> str:
    return f"{prepared.partition}:{prepared.offset}"


def only(bridge: Bridge, selection: Selection = ALL) -> OpenMessage:
    [message] = list_pending(connect(bridge), selection).messages
    return message


def ends(bridge: Bridge) -> list[tuple[dict[str, bytes], bytes]]:
    """Headers and values of all END records."""
    return [(dict(message.headers() or ()), message.value()) for message in bridge.read(bridge.names.end)]


def discard(bridge: Bridge, count: int = 1, group: str = "group") -> list[Prepared]:
    """Let these messages be discarded in partition 0; the owner is stopped afterwards."""
    topic = bridge.create_topic(f"real-{secrets.token_hex(2)}")
    prepared = bridge.prepare_many(topic, [b"%d" % number for number in range(count)], partition=0, group=group)
    before = len(bridge.discarded())
    with bridge.member(group), bridge.local_owner(**ONE_CHECK):
        eventually(lambda: len(bridge.discarded()) == before + count)
    return prepared


def test_pending_is_listed_though_there_was_never_a_worker(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    first = bridge.prepare(topic, b"x", key=b"k1", partition=1, group="orders")
    # The list is ordered by birth, which has a resolution of milliseconds.
    time.sleep(0.01)
    second = bridge.prepare(
        topic, b"y", partition=0, group="billing", extra=[("CHECK_IMMUNITY_TIME_IN_SECONDS", b"60")]
    )
    decided = bridge.prepare(topic, b"z", partition=0, group="orders")
    end_offset = bridge.end([decided.entry(COMMIT)], 0, group="orders")
    listing = list_pending(connect(bridge))
    assert [one.coordinates for one in listing.messages] == [where(first), where(second), where(decided)]
    assert (listing.total, listing.warnings) == (3, [])
    one, immune, stored = listing.messages
    born = {message.value(): message.timestamp()[1] for message in bridge.read(bridge.names.half)}
    assert (one.transaction_id, one.group, one.real_topic, one.key) == (first.transaction_id, "orders", topic, b"k1")
    assert (one.state, one.checks, one.born, one.error) == (TransactionState.PENDING, 0, born[b"x"], None)
    assert (one.next_step, one.next_due) == (NextStep.CHECK, born[b"x"] + 1_000)
    assert (immune.next_due, immune.key, immune.stored) == (born[b"y"] + 60_000, None, None)
    # No worker has applied the decision, so the message is still pending although it is decided.
    assert stored.state is TransactionState.PENDING
    assert str(stored.stored) == f"commit of client at END offset {end_offset}"
    # The command has written nothing and made no consumer group.
    assert bridge.read(bridge.names.offset) == []
    groups = bridge.admin.list_consumer_groups(request_timeout=10).result().valid
    assert "txbridge-reader" not in {group.group_id for group in groups}


def test_pending_shows_checks_and_the_last_error_beside_a_worker_and_does_not_disturb_it(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.member() as member, bridge.local_owner(transaction_check_interval=60_000), capture_logs() as logs:
        asked = bridge.prepare(topic, b"asked", key=b"\xff\x00", partition=0)
        eventually(lambda: member.checks(asked))
        unsure = asked.entry(UNKNOWN, 1)
        bridge.end([f"{unsure},first"], 0, source="check")
        bridge.end([f"{unsure},database%20is%20away%2C%20again"], 0, source="check")
        # A forged answer: its remark is ignored.
        bridge.end([f"{asked.offset},{secrets.token_hex(16).upper()},0,1,forged"], 0, source="check")
        eventually(lambda: bridge.checkpoint(0)["end"] == 3)
        before = bridge.checkpoint(0)
        for _ in range(3):
            message = only(bridge)
        sent = member.requests(asked)[0].timestamp()[1]
        assert (message.checks, message.parked, message.key) == (1, True, b"\xff\x00")
        assert message.error == "database is away, again"
        assert message.next_due is not None
        # 60 s after the worker decided to send the check, which was at most some seconds before the append.
        assert sent + 55_000 < message.next_due <= sent + 60_000
        assert list_pending(connect(bridge), errors=False).messages[0].error is None
        # The command did not disturb the worker: the same owner goes on, without a take-over.
        assert bridge.checkpoint(0)["owner"] == before["owner"]
        bridge.decide(asked, COMMIT)
        bridge.wait_visible(topic, [b"asked"])
        eventually(lambda: list_pending(connect(bridge), ALL).total == 0)
    assert {"fenced", "partition_taken_over"}.isdisjoint(entry["event"] for entry in logs)


def test_pending_under_traffic_shows_what_is_stuck_and_nothing_that_is_finished(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner(park_after=300):
        stuck = bridge.prepare(topic, b"stuck", partition=0, group="dead")
        eventually(lambda: bridge.parked_states(0) == ["pending"])
        finished: set[int] = set()
        for _ in range(5):
            prepared = bridge.prepare_many(topic, [b"x"] * 500, partition=0)
            bridge.decide_many(prepared, COMMIT)
            listing = list_pending(connect(bridge), Selection(limit=None), errors=False)
            assert listing.messages[0].half_offset == stuck.offset
            assert finished.isdisjoint(one.half_offset for one in listing.messages)
            bridge.wait_outcome(prepared[-1], "commit")
            finished |= {one.offset for one in prepared}
        eventually(lambda: [one.half_offset for one in list_pending(connect(bridge)).messages] == [stuck.offset])


def test_a_commit_by_hand_is_delivered_once_and_who_and_why_are_recorded_in_end(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    with bridge.local_owner():
        prepared, unwanted = bridge.prepare_many(topic, [b"value", b"unwanted"], partition=0, group="dead")
        answer = resolve(connect(bridge), where(prepared), Action.COMMIT, **WORDS)
        assert (answer.result, answer.end_offset) == (Result.COMMITTED, 0)
        other = resolve(connect(bridge), unwanted.transaction_id[:8], Action.ROLLBACK, **WORDS)
        assert (other.result, other.message.coordinates) == (Result.ROLLED_BACK, where(unwanted))
        assert bridge.visible(topic) == {b"value": 1}
    headers, value = ends(bridge)[0]
    assert headers == {"TXB_V": b"1", "PGROUP": b"dead", "SOURCE": b"operator", "CLIENT_ID": b"alice"}
    remark = b"order 42 was paid%2C see ticket 7: 100 %25"
    assert value == b"%d,%s,8,,%s" % (prepared.offset, prepared.transaction_id.encode(), remark)
    assert bridge.outcomes() == {(0, prepared.offset): ["commit"], (0, unwanted.offset): ["rollback"]}


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
def test_p5_a_decided_message_can_not_be_resolved_and_nothing_is_written(bridge: Bridge, decision: int) -> None:
    topic = bridge.create_topic("real")
    prepared = bridge.prepare(topic, b"value", partition=0)
    young = bridge.prepare(topic, b"young", partition=0)
    with bridge.local_owner(park_after=200):
        bridge.decide(prepared, decision)
        bridge.wait_outcome(prepared, {COMMIT: "commit", ROLLBACK: "rollback"}[decision])
        for other in (Action.COMMIT, Action.ROLLBACK):
            with pytest.raises(FinishedError, match=f"{where(prepared)} is finished: it was (committed|rolled back)"):
                resolve(connect(bridge), where(prepared), other, **WORDS)
        # The outcome is also found when only OP remembers it, below the watermark.
        eventually(lambda: bridge.checkpoint(0)["half"] > young.offset)
        with pytest.raises(FinishedError, match="is finished: it was"):
            resolve(connect(bridge), where(prepared), Action.COMMIT, **WORDS)
    assert len(ends(bridge)) == 1
    assert bridge.outcomes() == {(0, prepared.offset): [{COMMIT: "commit", ROLLBACK: "rollback"}[decision]]}
    assert bridge.visible(topic) == ({b"value": 1} if decision == COMMIT else {})


def test_p5_a_decision_that_comes_between_our_look_and_our_command_wins(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = bridge.create_topic("real")
    write = commands.write_end

    def late(*arguments: Any) -> int:
        bridge.decide(prepared, ROLLBACK)
        return write(*arguments)

    monkeypatch.setattr(commands, "write_end", late)
    with bridge.local_owner():
        prepared = bridge.prepare(topic, b"value", partition=0)
        answer = resolve(connect(bridge), where(prepared), Action.COMMIT, **WORDS)
    assert (answer.result, answer.end_offset) == (Result.REFUSED, 1)
    assert answer.detail == "another command came first: rollback of client at END offset 0"
    assert bridge.visible(topic) == {}
    assert bridge.outcomes() == {(0, prepared.offset): ["rollback"]}


def test_a_decision_without_a_worker_is_stored_and_applied_by_the_next_one(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    prepared = bridge.prepare(topic, b"value", partition=0)
    answer = resolve(connect(bridge), where(prepared), Action.COMMIT, **WORDS, timeout_s=0.5)
    assert (answer.result, answer.end_offset) == (Result.STORED, 0)
    assert "no worker applied it within 0.5 s: none is running" in answer.detail
    assert str(only(bridge).stored) == "commit of operator alice at END offset 0"
    again = resolve(connect(bridge), where(prepared), Action.ROLLBACK, **WORDS)
    assert (again.result, again.end_offset) == (Result.REFUSED, None)
    assert again.detail.startswith(
        "another command came first: commit of operator alice at END offset 0, which no worker has"
    )
    assert len(ends(bridge)) == 1
    with bridge.local_owner():
        bridge.wait_visible(topic, [b"value"])
    assert bridge.visible(topic) == {b"value": 1}


def test_a_decision_during_a_fail_over_waits_for_the_next_worker(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    worker = bridge.worker()
    prepared = bridge.prepare(topic, b"value", partition=1, group="dead")
    worker.kill()
    bridge.worker(wait=0)
    answer = resolve(connect(bridge), where(prepared), Action.COMMIT, **WORDS)
    assert answer.result is Result.COMMITTED
    assert bridge.visible(topic) == {b"value": 1}


def test_forged_unknown_and_mistyped_messages_are_refused_and_nothing_is_written(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    prepared = bridge.prepare(topic, b"value", partition=0)
    bridge.produce(bridge.names.half, value=b"not ours", partition=0)
    for partition in range(2):
        headers = bridge.half_headers(topic, transaction_id="0123ABCD" + secrets.token_hex(12).upper())
        bridge.produce(bridge.names.half, value=b"alike", headers=headers, partition=partition)
    connection = connect(bridge)
    forged = secrets.token_hex(16).upper()
    short = prepared.transaction_id[:8]
    mistakes = [
        (forged, None, f"no open half message has the transaction id {forged[:8]}"),
        ("2:0", None, "has no partition 2: its partitions are 0 to 1"),
        ("0:3", None, "there is no half message at 0:3: .* ends at offset 3"),
        ("0:1", None, "the record at 0:1 is not a half message: txbridge did not write it"),
        ("1:1", None, "there is no half message at 1:1: .* ends at offset 1"),
        (where(prepared), forged, f"has the transaction id {short}..., not {forged[:8]}...: nothing was done"),
        (where(prepared), short[:7], "--id takes the first 8 to 32 characters"),
        (short[:7], None, f"'{short[:7]}' is not the address of a half message"),
        ("0123ABCD", None, "the half messages at 0:2 and 1:0 have ids that begin with 0123ABCD: give coordinates"),
        (prepared.transaction_id.lower(), None, "is not the address of a half message"),
        ("", None, "'' is not the address of a half message"),
    ]
    for target, prefix, text in mistakes:
        with pytest.raises(UsageError, match=text) as caught:
            resolve(connection, target, Action.COMMIT, **WORDS, id_prefix=prefix)
        assert prepared.transaction_id not in str(caught.value)
        assert forged not in str(caught.value)
        with pytest.raises(UsageError):
            resolve(connection, target, Action.RESUME, **WORDS, id_prefix=prefix)
        if target in {"0123ABCD", short[:7]}:
            with pytest.raises(UsageError, match=text):
                read_history(connection, target)
    assert ends(bridge) == []
    answer = resolve(connection, where(prepared), Action.COMMIT, **WORDS, id_prefix=short, timeout_s=0)
    assert answer.result is Result.STORED


def test_p7_a_resumed_message_is_checked_from_one_again_and_then_committed_once(bridge: Bridge) -> None:
    [prepared] = discard(bridge)
    [topic] = [one.real_topic for one in list_discarded(connect(bridge)).messages]
    late = resolve(connect(bridge), where(prepared), Action.COMMIT, **WORDS)
    assert (late.result, late.end_offset) == (Result.REFUSED, None)
    assert "it was discarded (MAX_CHECKS)" in late.detail
    with bridge.member() as member, bridge.local_owner(transaction_check_interval=60_000):
        eventually(lambda: len(member.checks(prepared)) == 1)
        answer = resolve(connect(bridge), where(prepared), Action.RESUME, **WORDS)
        assert (answer.result, answer.end_offset) == (Result.RESUMED, 0)
        # The first check after the resume.
        eventually(lambda: len(member.checks(prepared)) == 2)
        assert [check["TRANSACTION_CHECK_TIMES"] for check in member.checks(prepared)] == [b"1", b"1"]
        message = only(bridge)
        assert (message.state, message.checks) == (TransactionState.PENDING, 1)
        assert message.resumed is not None
        # A second resume of the same discard writes nothing and reports that.
        again = resolve(connect(bridge), where(prepared), Action.RESUME, **WORDS)
        assert (again.result, again.end_offset) == (Result.ALREADY_RESUMED, None)
        assert again.detail == "it was resumed before and is pending. Nothing was written"
        bridge.end([prepared.entry(COMMIT, 1)], 0, source="check")
        bridge.wait_visible(topic, [b"0"])
        with pytest.raises(FinishedError, match="it was committed and delivered"):
            resolve(connect(bridge), where(prepared), Action.RESUME, **WORDS)
    headers, value = ends(bridge)[0]
    assert headers == {"TXB_V": b"1", "PGROUP": b"group", "SOURCE": b"resume", "CLIENT_ID": b"alice"}
    assert value.startswith(b"%d,%s,0,,order 42" % (prepared.offset, prepared.transaction_id.encode()))
    assert len(ends(bridge)) == 2
    assert bridge.visible(topic) == {b"0": 1}
    assert len(bridge.discarded()) == 1


def test_a_held_message_whose_topic_is_gone_for_good_is_abandoned_and_told(bridge: Bridge) -> None:
    missing = f"{bridge.namespace}.missing"
    with bridge.local_owner():
        pending = bridge.prepare(bridge.create_topic("real"), b"pending", partition=0)
        prepared = bridge.prepare(missing, b"value", key=b"key", headers=[("trace", b"1")], partition=0)
        bridge.decide(prepared, COMMIT)
        eventually(lambda: "held" in bridge.parked_states(0))
        refused = resolve(connect(bridge), where(pending), Action.ABANDON, **WORDS)
        assert (refused.result, refused.end_offset) == (Result.REFUSED, None)
        assert refused.detail.startswith("it is pending: only a held")
        looked = run(bridge, "resolve", where(prepared), "abandon", "--dry-run")
        assert looked.returncode == 0, looked.stderr
        assert f"topic {missing} does not exist. Nothing was written" in " ".join(looked.stdout.split())
        assert (len(ends(bridge)), bridge.discarded()) == (1, [])
        done = run(
            bridge,
            "resolve",
            where(prepared),
            "abandon",
            "--reason",
            "topic retired",
            "--operator",
            "alice",
            "--format",
            "json",
        )
        assert done.returncode == 0, done.stderr
        [answer] = json.loads(done.stdout)["answers"]
        assert (answer["result"], answer["end_offset"]) == ("abandoned", 1)
        # A second abandon writes nothing.
        again = run(bridge, "resolve", where(prepared), "abandon", "--reason", "again")
        assert again.returncode == 1
        assert "or cancelled by the application. Nothing was written" in " ".join(again.stdout.split())
        bridge.create_topic("missing")
        bridge.decide(pending, COMMIT)
        bridge.wait_outcome(pending, "commit")
        assert bridge.parked_states(0) == []
    assert bridge.visible(missing) == {}
    assert bridge.outcomes()[0, prepared.offset] == ["abandon"]
    [record] = bridge.discarded()
    assert (record["key"], record["value"], record["trace"]) == (b"key", b"value", b"1")
    assert (record["TXB_REASON"], record["TXB_HALF"]) == (b"ABANDONED", where(prepared).encode())
    assert (record["CLIENT_ID"], record["TXB_REMARK"]) == (b"alice", b"topic retired")
    assert record["TXB_ERROR"] == f"topic {missing} does not exist".encode()
    history = read_history(connect(bridge), where(prepared))
    assert history.state == "abandoned"
    assert {"END abandon", "abandoned", "set aside"} <= {step.what for step in history.steps}


def test_a_held_message_whose_body_retention_has_deleted_is_abandoned_without_it(bridge: Bridge) -> None:
    with bridge.local_owner():
        prepared = bridge.prepare(f"{bridge.namespace}.missing", b"value", partition=0)
        bridge.decide(prepared, COMMIT)
        eventually(lambda: bridge.parked_states(0) == ["held"])
    bridge.delete_records(bridge.names.half, 0, prepared.offset + 1)
    topic = bridge.create_topic("missing")
    with bridge.local_owner():
        eventually(lambda: "deleted its half message" in (only(bridge).error or "") or only(bridge).gone)
        answer = resolve(connect(bridge), where(prepared), Action.ABANDON, **WORDS)
        assert answer.result is Result.ABANDONED
    assert bridge.visible(topic) == {}
    [record] = bridge.discarded()
    assert (record["key"], record["value"], record["TXB_REASON"]) == (None, None, b"ABANDONED")
    assert (record["UNIQ_KEY"], record["CLIENT_ID"]) == (prepared.transaction_id.encode(), b"alice")


def run(bridge: Bridge, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    where = {"TXBRIDGE_BOOTSTRAP_SERVERS": bridge.bootstrap_servers, "TXBRIDGE_NAMESPACE": bridge.namespace}
    done = run_txbridge(*arguments, env={**os.environ, **where, **environment})
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_the_cause_says_who_could_answer_a_check(bridge: Bridge) -> None:
    def cause(group: str = "late.eu") -> str:
        done = run(bridge, "pending", "--format", "json", "--group", group)
        [text] = json.loads(done.stdout)["causes"]
        return str(text)

    bridge.prepare("real", b"value", group="late.eu", extra=[("CHECK_IMMUNITY_TIME_IN_SECONDS", b"3600")])
    assert cause() == (
        "pending, group late.eu: not asked yet; no check topic: no client of the group has joined yet, or the topic "
        "was deleted"
    )
    with bridge.member("late.eu"):
        eventually(lambda: cause() == "pending, group late.eu: not asked yet")
    bridge.prepare("real", b"value", group="late_eu", extra=[("CHECK_IMMUNITY_TIME_IN_SECONDS", b"3600")])
    assert f"differ only in '.' and '_' for the same, and there is {bridge.names.check('late.eu')}" in cause("late_eu")
    eventually(
        lambda: (
            cause()
            == "pending, group late.eu: not asked yet; no member of the group is connected, to Kafka or a front door"
        )
    )


def test_the_commands_end_to_end_with_table_json_and_exit_codes(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    bridge.worker(park_after=500)
    prepared = bridge.prepare(topic, b"value", key=b"customer 42", partition=0, group="dead")
    table = run(bridge, "pending")
    assert table.returncode == 0, table.stderr
    row = next(line for line in table.stdout.splitlines() if where(prepared) in line).split()
    short = prepared.transaction_id[:8]
    assert row[:7] == [where(prepared), short, "pending", "dead", topic, "customer", "42"]
    assert prepared.transaction_id not in table.stdout
    listed = json.loads(run(bridge, "pending", "--format", "json", "--show-ids", "--group", "dead").stdout)
    assert (listed["namespace"], listed["total"], listed["warnings"]) == (bridge.namespace, 1, [])
    about = f"namespace {bridge.namespace} on cluster {listed['cluster_id']} at {bridge.bootstrap_servers}\n"
    assert table.stdout.startswith(about)
    [message] = listed["messages"]
    assert (message["transaction_id"], message["key"], message["topic"]) == (
        prepared.transaction_id,
        "customer 42",
        topic,
    )
    assert (message["partition"], message["half_offset"], message["state"], message["checks"]) == (
        0,
        prepared.offset,
        "pending",
        0,
    )
    for cause, total in (("GROUP dead: not asked", 1), ("does not exist", 0)):
        assert json.loads(run(bridge, "pending", "--format", "json", "--cause", cause).stdout)["total"] == total
    done = run(
        bridge, "resolve", where(prepared), "commit", "--id", short, "--reason", "it was paid", "--format", "json"
    )
    assert done.returncode == 0, done.stderr
    [answer] = json.loads(done.stdout)["answers"]
    assert (answer["result"], answer["end_offset"], answer["transaction_id"]) == ("committed", 0, short)
    assert bridge.visible(topic) == {b"value": 1}
    shown = run(bridge, "show", where(prepared))
    assert shown.returncode == 0, shown.stderr
    first, *steps = shown.stdout.removeprefix(about).splitlines()
    assert first == f"{where(prepared)} ({short}, group dead, topic {topic}): delivered"
    # Columns: time, time since birth, event, and details.
    columns = [re.split(" {2,}", step) for step in steps]
    assert [column[2] for column in columns] == ["prepared", "END commit", "delivered"]
    assert columns[1][3].startswith("operator ")
    assert steps[1].endswith("END offset 0: it was paid")
    # The id is searched for by as much of it as logs and tables show.
    told = json.loads(run(bridge, "show", short, "--format", "json").stdout)
    assert (told["namespace"], told["partition"], told["half_offset"]) == (bridge.namespace, 0, prepared.offset)
    assert (told["transaction_id"], told["state"], told["topic"], told["missing"]) == (short, "delivered", topic, [])
    assert [step["what"] for step in told["steps"]] == ["prepared", "END commit", "delivered"]
    nobody = run(bridge, "show", "0:999")
    assert (nobody.returncode, nobody.stdout) == (2, "")
    assert "error: there is no half message at 0:999: HALF ends before it" in nobody.stderr
    refused = run(bridge, "resolve", where(prepared), "rollback", "--reason", "oops")
    assert (refused.returncode, refused.stdout) == (
        1,
        f"{about}refused: {where(prepared)} is finished: it was committed and delivered. Nothing was written\n",
    )
    resumed = run(bridge, "resume", where(prepared), "--reason", "oops", "--format", "json")
    assert (resumed.returncode, json.loads(resumed.stdout)["answers"]) == (1, [])
    nothing = run(bridge, "resolve-all", "resume", "--group", "dead", "--yes", "--reason", "oops")
    assert (nothing.returncode, nothing.stdout) == (0, f"{about}no message matches\n")
    assert run(bridge, "pending").stdout == f"{about}no open message matches\n"
    held = bridge.prepare(f"{bridge.namespace}.missing", b"value", partition=0)
    done = run(bridge, "resolve", where(held), "commit", "--reason", "it was paid", "--operator", "bob")
    assert done.returncode == 3, done.stderr
    assert done.stdout.startswith(f"{about}held  {where(held)} ({held.transaction_id[:8]}, group group, topic ")


def test_many_are_resolved_by_cause_after_a_dry_run_and_no_others(bridge: Bridge) -> None:
    topic = bridge.create_topic("real")
    mine = [bridge.prepare(topic, b"%d" % number, partition=number % 2, group="dead") for number in range(3)]
    other = bridge.prepare(topic, b"other", partition=0, group="dead-too")
    cause = ["--cause", "group dead:", "--real-topic", topic]
    dry = run(bridge, "resolve-all", "commit", *cause, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert [line.split()[:2] for line in dry.stdout.splitlines() if line.startswith("would_commit")] == [
        ["would_commit", place] for place in sorted(where(one) for one in mine)
    ]
    assert "3  pending, group dead: not asked yet" in dry.stdout
    assert "give --yes --expect 3 and --reason" in dry.stdout
    why = ["--reason", "the batch was paid, ticket 7", "--operator", "alice"]
    changed = run(bridge, "resolve-all", "commit", *cause, "--yes", "--expect", "2", *why)
    assert (changed.returncode, "3 messages, not 2" in changed.stdout) == (1, True), changed.stdout
    none = run(bridge, "resolve-all", "abandon", *cause, "--dry-run")
    assert (none.returncode, none.stdout.splitlines()[-1]) == (0, "no message matches")
    assert ends(bridge) == []
    bridge.worker()
    done = run(bridge, "resolve-all", "commit", *cause, "--yes", "--expect", "3", *why, "--format", "json")
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)["answers"]
    assert [(one["result"], one["group"]) for one in answers] == [("committed", "dead")] * 3
    assert bridge.visible(topic) == {b"0": 1, b"1": 1, b"2": 1}
    assert only(bridge).coordinates == where(other)
    assert {headers["CLIENT_ID"] for headers, _ in ends(bridge)} == {b"alice"}


def test_missing_topics_and_a_cut_log_are_errors_that_say_so(bridge: Bridge) -> None:
    with pytest.raises(LayoutError, match="does not exist"):
        Connection.open(WorkerSettings(bootstrap_servers=bridge.bootstrap_servers, namespace="nowhere"))
    topic = bridge.create_topic("real")
    bridge.prepare(topic, b"value", partition=0)
    with bridge.local_owner(park_after=200):
        eventually(lambda: bridge.checkpoint(0)["half"] == 1)
    bridge.recreate(bridge.names.half)
    prepared = bridge.prepare(topic, b"value", partition=1)
    since = time.monotonic()
    with pytest.raises(EnvironmentProblemError, match="ends at offset 0, below offset 1 that a worker had reached"):
        list_pending(connect(bridge), Selection(partition=0))
    # The readable partitions are listed nevertheless.
    listing = list_pending(connect(bridge))
    assert [one.coordinates for one in listing.messages] == [where(prepared)]
    assert list(listing.unread) == [0]
    assert time.monotonic() - since < 60
    done = run(bridge, "pending", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["total"]) == (2, 1)
    assert "error: partition 0 could not be read: " in done.stderr
    # The topic was created again, and is as long again as the old one.
    bridge.prepare(topic, b"value", partition=0)
    [warning] = list_pending(connect(bridge)).warnings
    assert "it was deleted and created again" in warning
    fresh = bridge.prepare(topic, b"value", partition=0)
    answer = resolve(connect(bridge), where(fresh), Action.COMMIT, **WORDS, timeout_s=0)
    assert (answer.result, answer.detail.endswith(warning)) == (Result.STORED, True)
