"""`txbridge pending | resolve | resume` without Kafka: output, exit codes, wrong arguments."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from rich.cells import cell_len

from tests.support import open_messages
from tests.support.partition_builder import COMMIT
from txbridge.cli import main
from txbridge.cli import operations as commands
from txbridge.cli.operations import exit_code
from txbridge.cli.render import answer_record, message_record, print_listing, shown_key
from txbridge.core.decision_record import Source
from txbridge.core.states import TransactionState
from txbridge.errors import UsageError
from txbridge.operations.causes import cause_of, next_step_of
from txbridge.operations.model import Answer, Listing, NextStep, OpenMessage, Result, StoredCommand
from txbridge.subject import Subject
from txbridge.text import parse_age

NOW = 1_700_000_100_000
SUBJECT = Subject("staging", "broker:9092", "C1")
ABOUT = "namespace staging on cluster C1 at broker:9092"
PENDING = replace(
    open_messages.PENDING,
    born=1_700_000_000_000,
    checks=2,
    next_due=1_700_000_112_000,
    parked=True,
    error="database is away",
    key=b"customer 42",
)
DISCARDED = replace(
    PENDING, state=TransactionState.DISCARDED, reason="MAX_CHECKS", discarded_at=(0, 9), next_step=NextStep.LAPSE
)
SCHEDULED = replace(PENDING, state=TransactionState.SCHEDULED, decided=6, next_step=NextStep.DELIVER, error=None)


@pytest.fixture
def txbridge(monkeypatch, capsys):
    """Run the whole command. Returns exit code, output and errors."""
    monkeypatch.delenv("TXBRIDGE_CONFIG", raising=False)

    def run(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["txbridge", *arguments])
        with pytest.raises(SystemExit) as ended:
            main.main()
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return run


@pytest.mark.parametrize(("key", "text"), [(None, ""), (b"", ""), (b"k", "k"), (b"\xff\x00", "0xff00")])
def test_a_key_is_shown_as_text_or_as_hexadecimal_digits(key, text):
    assert shown_key(key) == text


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (PENDING, "check in 12s"),
        (replace(PENDING, next_due=1_700_000_040_000), "check due for 1m"),
        (replace(PENDING, next_step=NextStep.RETRY, next_due=None), "retry within a minute"),
        (
            replace(PENDING, stored=StoredCommand(7, COMMIT, Source.CLIENT, None)),
            "commit of client at END offset 7, not applied yet",
        ),
        (SCHEDULED, "deliver in 12s"),
        (replace(SCHEDULED, next_due=NOW + 7_200_000), "deliver in 2h"),
        (replace(SCHEDULED, messages=3, delivered=1), "1 of 3 delivered, deliver in 12s"),
        (replace(SCHEDULED, next_due=NOW), "deliver due for 0s"),
        (replace(SCHEDULED, next_due=NOW - 180_000), "deliver due for 3m"),
    ],
)
def test_the_next_step_in_words(message, text):
    assert next_step_of(message, NOW) == text


NOBODY = "no member of the group is connected, to Kafka or a front door"


def test_a_message_as_json_shows_its_short_id_only():
    assert message_record(PENDING, NOW, show_ids=False) == {
        "partition": 3,
        "half_offset": 4,
        "transaction_id": "ABCDEF00",
        "group": "orders",
        "topic": "orders.placed",
        "key": "customer 42",
        "barrier_id": None,
        "size": 10,
        "messages": 1,
        "delivered": 0,
        "state": "pending",
        "parked": True,
        "born": "2023-11-14T22:13:20.000Z",
        "age_ms": 100_000,
        "checks": 2,
        "next_step": "check",
        "next_due": "2023-11-14T22:15:12.000Z",
        "error": "database is away",
        "decided_at_end_offset": None,
        "discard_reason": None,
        "discarded_at": None,
        "resumed": None,
        "body_gone": False,
        "stored": None,
    }


def test_a_message_as_json_with_all_that_it_can_have():
    stored = StoredCommand(7, COMMIT, Source.OPERATOR, "alice")
    message = replace(DISCARDED, key=b"\xff", born=10**17, resumed=1_700_000_001_000, stored=stored)
    record = message_record(message, NOW, show_ids=True)
    assert record["transaction_id"] == "ABCDEF00000000000000000000000004"
    assert (record["key"], record["key_base64"]) == (None, "/w==")
    assert (record["discard_reason"], record["discarded_at"]) == ("MAX_CHECKS", "0:9")
    assert (record["born"], record["resumed"]) == ("100000000000000000 ms", "2023-11-14T22:13:21.000Z")
    assert record["stored"] == {"end_offset": 7, "decision": "commit", "source": "operator", "client_id": "alice"}


def test_an_answer_as_json():
    assert answer_record(Answer(PENDING, Result.COMMITTED, "committed", 20)) == {
        "partition": 3,
        "half_offset": 4,
        "transaction_id": "ABCDEF00",
        "group": "orders",
        "topic": "orders.placed",
        "result": "committed",
        "detail": "committed",
        "end_offset": 20,
    }


def listing(*messages: OpenMessage, left_out: Mapping[TransactionState, int] | None = None, more: int = 0) -> Listing:
    # The remarks of the last answers are read later, and only for the messages that are shown.
    causes = Counter(cause_of(replace(message, parked=False), NOW) for message in messages)
    return Listing(messages, len(messages) + more, NOW, (), {}, causes, left_out or {})


@pytest.fixture
def shown(monkeypatch, capsys):
    """The output of a listing on a terminal of this width."""

    def show(listing: Listing, width: int, *, show_ids: bool = False) -> list[str]:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        print_listing(SUBJECT, listing, show_ids=show_ids)
        return capsys.readouterr().out.splitlines()

    return show


HELD = replace(
    PENDING,
    half_offset=5,
    state=TransactionState.HELD,
    next_step=NextStep.RETRY,
    next_due=None,
    error="the topic orders.placed does not exist: create it, or grant WRITE on it to the worker",
)


def test_a_table_of_open_messages_where_it_is_wide_enough(shown):
    about, open_now, cause, other, header, _, first, second, *rest = [
        line for line in shown(listing(PENDING, DISCARDED, more=3), 200) if line.strip()
    ]
    assert (about, open_now) == (ABOUT, "5 open messages, the oldest for 1m 40s:")
    assert cause == "1  pending, group orders: asked, and not decided yet"
    assert other == "1  discarded, group orders: MAX_CHECKS; can be resumed"
    names = ["message", "transaction id", "state", "group", "topic", "key", "age", "checks", "next", "last error"]
    assert " ".join(header.split()) == " ".join(names)
    assert " ".join(first.split()) == (
        "3:4 ABCDEF00 pending orders orders.placed customer 42 1m 40s 2 check in 12s database is away"
    )
    assert "MAX_CHECKS; database is away" in second
    assert rest == ["shown: the oldest 2 of 5; --limit 5 shows all"]


def test_the_barrier_table_of_a_message_is_shown(shown):
    message = replace(PENDING, barrier_id="9f86d081884c7d65")
    [row] = [line for line in shown(listing(message), 200) if "ABCDEF00" in line]
    assert "orders (9f86d081)" in row
    [line] = [line for line in shown(listing(message), 80) if "group orders" in line and "topic" in line]
    assert line.strip() == "group orders  topic orders.placed  key customer 42  barrier 9f86d081884c7d65"


def test_a_block_for_each_message_on_a_terminal_of_80_columns(shown):
    lines = shown(listing(PENDING, HELD, left_out={TransactionState.DISCARDED: 4}), 80)
    assert lines == [
        ABOUT,
        "2 open messages, the oldest for 1m 40s:",
        "1  pending, group orders: asked, and not decided yet",
        "1  held for topic orders.placed: the topic orders.placed does not exist: create",
        "   it, or grant WRITE on it to the worker",
        "",
        "3:4  ABCDEF00  pending  age 1m 40s  2 checks  check in 12s",
        "    group orders  topic orders.placed  key customer 42",
        "    database is away",
        "",
        "3:5  ABCDEF00  held  age 1m 40s  2 checks  retry within a minute",
        "    group orders  topic orders.placed  key customer 42",
        "    the topic orders.placed does not exist: create it, or grant WRITE on it to",
        "    the worker",
        "",
        "left out by the filters: 4 other open messages (4 discarded); --state all lists ",
        "every state",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 149])
def test_no_line_is_longer_than_the_terminal_whatever_the_names_are(shown, width):
    """A line that the terminal wraps would be unreadable."""
    names = {"group": "g" * 200, "real_topic": "t" * 249, "key": "日本語".encode() * 20, "error": "e" * 500}
    lines = shown(listing(replace(PENDING, **names), HELD, DISCARDED), width, show_ids=True)
    assert [line for line in lines[1:] if cell_len(line) > width] == []
    assert "".join(line.strip() for line in lines).count("t" * 20) >= 10


def test_causes_are_counted_and_the_rare_ones_put_together(shown):
    many = [replace(PENDING, group=f"group-{number}", half_offset=number) for number in range(12)]
    lines = shown(listing(*many, replace(many[0], half_offset=99)), 80)
    assert lines[2] == "2  pending, group group-0: asked, and not decided yet"
    assert lines[12] == "   and 2 other causes"


QUIET = replace(PENDING, parked=False, error=None)
LATE = replace(QUIET, next_due=NOW - 60_001)
UNASKED = replace(QUIET, checks=0)


@pytest.mark.parametrize(
    ("message", "problem", "cause"),
    [
        (QUIET, None, "pending, group orders: asked, and not decided yet"),
        (QUIET, NOBODY, f"pending, group orders: asked, and not decided yet; {NOBODY}"),
        (UNASKED, "", "pending, group orders: not asked yet"),
        (UNASKED, NOBODY, f"pending, group orders: not asked yet; {NOBODY}"),
        (LATE, None, f"pending, group orders, overdue: no worker serves the partition, or {NOBODY}"),
        (LATE, NOBODY, f"pending, group orders, overdue: {NOBODY}"),
        (LATE, "", "pending, group orders, overdue: no worker serves the partition"),
        (
            replace(LATE, parked=True, error="topic c: it is too large"),
            "",
            "pending, group orders, cannot be asked: topic c: it is too large",
        ),
        (
            replace(QUIET, stored=StoredCommand(7, COMMIT, Source.CLIENT, None)),
            None,
            "pending, decided: no worker has applied it yet",
        ),
        (replace(QUIET, gone=True), None, "pending, and the half topic no longer has its body: cannot be delivered"),
        (HELD, None, f"held for topic orders.placed: {HELD.error}"),
        (DISCARDED, None, "discarded, group orders: MAX_CHECKS; can be resumed"),
        (
            replace(SCHEDULED, real_topic="orders.placed,mail"),
            None,
            "scheduled for topic orders.placed,mail: its time has not come",
        ),
        (
            replace(SCHEDULED, next_due=NOW - 60_001),
            None,
            "scheduled for topic orders.placed, overdue: no worker serves the partition",
        ),
    ],
)
def test_the_cause_of_an_open_message_with_what_kafka_says_of_its_group(message, problem, cause):
    assert cause_of(message, NOW, lambda _: problem) == cause


@pytest.mark.parametrize(
    ("results", "code"),
    [
        ([], 0),
        ([Result.COMMITTED], 0),
        ([Result.ROLLED_BACK], 0),
        ([Result.ABANDONED, Result.WOULD_ABANDON], 0),
        ([Result.RESUMED, Result.ALREADY_RESUMED, Result.WOULD_RESUME], 0),
        ([Result.RESUMED, Result.REFUSED, Result.STORED], 1),
        ([Result.RESUMED, Result.STORED], 3),
        ([Result.HELD], 3),
    ],
)
def test_the_exit_code_is_that_of_the_worst_answer(results, code):
    assert exit_code([Answer(PENDING, result, "", None) for result in results]) == code


@pytest.fixture
def on_cluster(monkeypatch):
    """A cluster for the commands. The test answers their library calls."""

    class Connected:
        subject = SUBJECT

    monkeypatch.setattr(commands.Connection, "open", lambda settings: Connected())
    return lambda name, answer: monkeypatch.setattr(commands, name, answer)


def test_pending_lists_the_states_that_are_asked_for(txbridge, on_cluster):
    asked = []

    def list_pending(_connection, selection, **_):
        asked.append(selection.states)
        return listing(SCHEDULED)

    on_cluster("list_pending", list_pending)
    for chosen in (["--state", "scheduled"], [], ["--state", "all"]):
        assert txbridge("pending", *chosen, "--bootstrap-servers", "broker:9092")[0] == 0
    default = {TransactionState.PENDING, TransactionState.HELD}
    assert asked == [
        {TransactionState.SCHEDULED},
        default,
        default | {TransactionState.SCHEDULED, TransactionState.DISCARDED},
    ]


@pytest.mark.parametrize(("text", "ms"), [("90s", 90_000), ("10m", 600_000), ("2h", 7_200_000), ("3d", 259_200_000)])
def test_an_age(text, ms):
    assert parse_age(text, "--older-than") == ms


@pytest.mark.parametrize("text", ["", "10", "-1s", "1w", "1.5h", "1h30m"])
def test_no_age(text):
    with pytest.raises(UsageError, match=r"^--older-than takes a number and a unit"):
        parse_age(text, "--older-than")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["pending"], "bootstrap_servers is missing"),
        (["pending", "--older-than", "soon"], "takes a number and a unit, as in 90s, 10m, 2h or 3d, not 'soon'"),
        (["resolve", "0:1", "commit"], "a reason is needed"),
        (["resolve", "0:1", "abandon"], "a reason is needed"),
        (["resume", "0:1"], "a reason is needed"),
        (["resolve", "0:1", "commit", "--dry-run"], "--dry-run needs the decision abandon"),
        (["resolve", "0:1", "maybe", "--reason", "x"], "Invalid value for"),
        (["resolve-all", "commit", "--dry-run"], "say which messages: give --cause with part of a cause, or --group"),
        (["resolve-all", "commit", "--cause", "x"], "look at them with --dry-run, then give --yes"),
        (["resolve-all", "resume", "--group", "x", "--dry-run", "--yes"], "look at them with --dry-run, then give"),
        (["resolve-all", "commit", "--cause", "x", "--dry-run", "--expect", "1"], "--expect needs --yes"),
        (["resolve-all", "commit", "--cause", "x", "--yes"], "a reason is needed"),
        (["resolve-all", "commit", "--cause", " ", "--dry-run"], "--cause needs part of a cause"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(txbridge, arguments, error):
    code, output, errors = txbridge(*arguments)
    assert (code, output) == (2, "")
    assert error in errors
    assert "Traceback" not in errors
