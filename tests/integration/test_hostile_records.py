"""Records that anyone may write: whatever their fields hold, it controls no terminal and changes no page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from typer.testing import CliRunner

from tests.support.audit_log import KafkaLog
from tests.support.audit_terms import COMMIT, PLAIN, ROLLBACK, Half, Record
from tests.support.module_fixtures import module_kafka
from txbridge.cli.app import app
from txbridge.embedded import EmbeddedKafka

#: A new title, an empty screen, letters from right to left, red as one 8-bit control, no width, a line of its own.
EVIL = "\x1b]0;evil\x07\x1b[2J\u202e\x9b31m\u200b\nclean: 9 transactions\r\n0:1 forged"
BYTES = EVIL.encode() + b"\x9b\xff"


def changed(record: Record) -> Iterator[Record]:
    """The record with one hostile field at a time: each header, another one, the key, the value, its texts."""
    for number, (name, _) in enumerate(record.headers):
        # Of an unknown version a reader must refuse everything, which a test of its own looks at.
        if name != "TXB_V":
            for value in (EVIL.encode(), BYTES, quote(EVIL).encode()):
                yield replace(record, headers=[*record.headers[:number], (name, value), *record.headers[number + 1 :]])
    yield replace(record, headers=[*record.headers, (EVIL, BYTES)])
    yield replace(record, headers=[*record.headers, ("CLIENT_ID", EVIL.encode()), ("TXB_REMARK", EVIL.encode())])
    if not record.topic.endswith("OFFSET_TOPIC"):
        yield replace(record, key=BYTES)
        yield replace(record, value=BYTES)
    elif record.value is not None:
        entry = json.loads(record.value)
        for name in (name for name, value in entry.items() if isinstance(value, str) and name != "state"):
            yield replace(record, value=json.dumps({**entry, name: EVIL}).encode())


class HostileLog(KafkaLog):
    """A log whose every record comes with hostile ones beside it."""

    def transaction(self, *records: Record) -> None:
        super().transaction(*(replace(other, at=[], stamped=[]) for one in records for other in changed(one)))
        super().transaction(*records)

    def plant(self) -> list[Half]:
        """Transactions in every state, and a decision in every operator's name."""
        delivered, rolled_back, pending, held, discarded = (self.half(key=BYTES, trace=EVIL) for _ in range(5))
        for half in (delivered, held):
            self.decide(half, COMMIT)
        self.decide(rolled_back, ROLLBACK)
        self.transaction(self.copy(delivered), self.op("commit", delivered))
        self.transaction(self.op("rollback", rolled_back))
        # All that a worker of today writes, so that the commands show the entry.
        entry = {"born": self.recently, "size": 9, "next": self.recently, "end": 0, "since": self.recently}
        why = {**entry, "error": EVIL, "reason": EVIL, "first": self.recently, "decided": self.recently}
        self.transaction(self.check(pending, self.end_position[PLAIN]), self.parked(pending, "pending", **why))
        self.transaction(self.parked(held, "held", **why))
        self.transaction(self.discard(discarded, reason=EVIL), self.op("discard", discarded))
        self.transaction(self.parked(discarded, "discarded", **why, at=[0, 0]))
        self.transaction(self.set_aside(self.names.end, PLAIN, 7, TXB_ERROR=EVIL))
        self.transaction(self.copy(Half(PLAIN, 90, EVIL[:32], EVIL, delivered.topic)))
        for half in (pending, discarded):
            self.transaction(self.set_aside(self.names.half, PLAIN, half.offset, TXB_ERROR=EVIL))
        super().transaction(*(self.progress(partition, 0, topics={}) for partition in (0, 1)))
        return [delivered, rolled_back, pending, held, discarded]

    def decide(self, half: Half, decision: int) -> None:
        for source in (EVIL, "resume", "abandon", "operator", "check", "client"):
            remark = f",,{quote(EVIL)}"
            self.decision_record(
                half.entry(8 if source == EVIL else decision, rest=remark).encode(), CLIENT_ID=EVIL, SOURCE=source
            )


kafka = module_kafka()


@pytest.fixture(scope="module")
def planted(kafka: EmbeddedKafka) -> tuple[HostileLog, list[Half]]:
    log = HostileLog(kafka.bootstrap_servers)
    return log, log.plant()


def said(log: KafkaLog, *arguments: str) -> str:
    """What a command prints, which controls nothing and forges no line."""
    cluster = ["--bootstrap-servers", log.servers, "--namespace", log.names.namespace]
    done = CliRunner().invoke(app, [*arguments, *cluster], catch_exceptions=False)
    printed = done.stdout + done.stderr
    assert {char for char in printed if not char.isprintable() and char != "\n"} == set(), (arguments, printed)
    forged = [line for line in printed.splitlines() if line.lstrip().startswith(("clean: 9", "0:1 forged"))]
    assert forged == [], (arguments, printed)
    assert "Traceback" not in printed
    return printed


def test_the_audit_and_its_page(planted: tuple[HostileLog, list[Half]], tmp_path: Path) -> None:
    log, _ = planted
    page = tmp_path / "page.html"
    rows = tmp_path / "rows.csv"
    printed = said(log, "audit", "--engine", "local", "--html", str(page), "--csv", str(rows))
    assert "\\x1b" in printed
    assert "PHANTOM" in printed
    for shown in (html.unescape(page.read_text(encoding="utf-8")), rows.read_text(encoding="utf-8")):
        assert {char for char in shown if not char.isprintable() and char != "\n"} == set()
        assert "\\u202e" in shown


def commands(halves: Sequence[Half]) -> Iterator[tuple[str, ...]]:
    yield "pending", "--state", "all"
    yield "pending", "--state", "all", "--show-ids"
    yield from (("show", f"{half.partition}:{half.offset}") for half in halves)
    yield from (("show", half.id) for half in halves)
    yield from (("doctor",), ("topics", "plan"))
    yield "resolve-all", "commit", "--cause", "forged", "--dry-run"
    yield from (("resume", f"{PLAIN}:{half.offset}", "--reason", EVIL) for half in halves)
    yield from (
        ("resolve", f"{PLAIN}:{half.offset}", "rollback", "--reason", EVIL, "--timeout", "0") for half in halves
    )
    yield from (("show", f"{PLAIN}:{half.offset}") for half in halves)
    yield "acknowledge", "0", "--reason", EVIL


def test_every_other_command(planted: tuple[HostileLog, list[Half]]) -> None:
    log, halves = planted
    printed = {words: said(log, *words) for words in commands(halves)}
    # They were shown, escaped.
    for words, text in printed.items():
        assert "\\x1b" in text or words[0] not in {"pending", "show"}, words
