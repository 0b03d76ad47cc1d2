"""Cuts, options and the report: the parts of the audit that need neither Spark nor Kafka."""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from rich.console import Console
from txbridge_audit.audit import AuditEngine, follow, run_audit
from txbridge_audit.cluster import kafka_admin
from txbridge_audit.cluster.cuts import Range, ranges, settle
from txbridge_audit.cluster.kafka_admin import AuditedCluster
from txbridge_audit.cluster.kafka_config import kafka_settings
from txbridge_audit.cluster.plan import Seen, selection_of
from txbridge_audit.engines.run import differing
from txbridge_audit.errors import CouldNotAuditError, ElectionError
from txbridge_audit.judge import fates
from txbridge_audit.judge.facts import AuditSelection, TopicPartition
from txbridge_audit.judge.fates import PENDING_STATES
from txbridge_audit.judge.table import FATES, FINDINGS, VIOLATIONS
from txbridge_audit.ledger.place import continued_folder
from txbridge_audit.protocol.record import KafkaRecord
from txbridge_audit.report.entries import Entry, Place, Tally
from txbridge_audit.report.model import AuditReport, rule_of
from txbridge_audit.report.terminal import print_report

A, B = ("orders", 0), ("orders", 1)


class Offsets:
    """A cluster whose last stable offsets move on with every request for them."""

    def __init__(self, high: dict[TopicPartition, int], stable: list[dict[TopicPartition, int]]) -> None:
        self.high, self.stable, self.asked = high, stable, 0

    def high_watermarks(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        assert self.asked == 0, "the high watermarks are asked for first, and once"
        return {key: self.high[key] for key in partitions}

    def stable_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        answer = self.stable[min(self.asked, len(self.stable) - 1)]
        self.asked += 1
        return {key: answer[key] for key in partitions}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_settle_waits_until_everything_written_so_far_is_decided() -> None:
    offsets = Offsets({A: 10, B: 4}, [{A: 7, B: 4}, {A: 9, B: 5}, {A: 12, B: 6}])
    cut = settle(offsets, [A, B], timeout=30, clock=(clock := Clock()), sleep=clock.sleep)
    # Records that came meanwhile are in the cut as well, which does no harm.
    assert (cut.ends, cut.unsettled) == ({A: 12, B: 6}, {})
    assert offsets.asked == 3


def test_settle_gives_up_and_names_what_stays_open() -> None:
    offsets = Offsets({A: 10, B: 4}, [{A: 7, B: 4}])
    cut = settle(offsets, [A, B], timeout=2, clock=(clock := Clock()), sleep=clock.sleep)
    assert (cut.ends, cut.unsettled) == ({A: 7, B: 4}, {A: 10})
    assert 2 <= clock.now < 3
    assert offsets.asked < 20


def test_settle_of_nothing() -> None:
    assert settle(Offsets({}, [{}]), []).ends == {}


class Told:
    """A healthy cluster's answers about `orders`: description, offsets, and one entry of its configuration."""

    topic_id, offset, value, leader_epoch = "id-1", 7, "compact", 3
    partitions: ClassVar[dict[int, object]] = {0: None, 1: None}
    error = None


class Broken:
    """An admin client that answers questions about a topic with these errors. 0 is the true answer.

    The last one repeats.
    """

    def __init__(self, *codes: int) -> None:
        self.codes, self.asked = codes, 0

    def _code(self) -> int:
        code = self.codes[min(self.asked, len(self.codes) - 1)]
        self.asked += 1
        return code

    def _answer(self, about: object, truth: object) -> dict[object, Future[object]]:
        code = self._code()
        future: Future[object] = Future()
        if code:
            future.set_exception(KafkaException(KafkaError(code)))
        else:
            future.set_result(truth)
        return {about: future}

    def list_offsets(self, wanted: dict[object, object], **_: object) -> dict[object, Future[object]]:
        return self._answer(next(iter(wanted)), Told())

    def describe_topics(self, _: object, **__: object) -> dict[object, Future[object]]:
        return self._answer("orders", Told())

    def describe_configs(self, resources: list[object], **_: object) -> dict[object, Future[object]]:
        return self._answer(resources[0], {"cleanup.policy": Told()})

    def list_topics(self, **_: object) -> SimpleNamespace:
        if code := self._code():
            raise KafkaException(KafkaError(code))
        return SimpleNamespace(cluster_id="C1", topics={"orders": Told()})


def broken(monkeypatch: pytest.MonkeyPatch, *codes: int) -> tuple[AuditedCluster, Broken]:
    """A cluster that has answered once."""
    client = Broken(0)
    monkeypatch.setattr(kafka_admin, "AdminClient", lambda _: client)
    monkeypatch.setattr(kafka_admin.time, "sleep", lambda _: None)
    asked = AuditedCluster(kafka_settings("kafka:9092"))
    asked.partition_counts()
    client.codes, client.asked = codes, 0
    return asked, client


def test_partition_without_leader_allows_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, half of the brokers are away. An election is waited for, and then the partition is named."""
    asked, client = broken(monkeypatch, KafkaError.LEADER_NOT_AVAILABLE)
    with pytest.raises(CouldNotAuditError, match=r"the offsets of orders/0 .*: no verdict .* its brokers are up"):
        asked.stable_offsets([A])
    assert client.asked == 40


@pytest.mark.parametrize(
    "busy",
    [
        KafkaError._TIMED_OUT,
        KafkaError._NOENT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        KafkaError._UNKNOWN_BROKER,
    ],
)
def test_every_question_to_a_busy_cluster_is_repeated(monkeypatch: pytest.MonkeyPatch, busy: int) -> None:
    questions: list[tuple[Callable[[AuditedCluster], object], object]] = [
        (lambda asked: asked.stable_offsets([A]), {A: 7}),
        (lambda asked: asked.topic_ids(["orders"]), {"orders": "id-1"}),
        (lambda asked: asked.cleanup_policies(["orders"]), {"orders": "compact"}),
        (lambda asked: asked.forbidden_topics(["orders"]), []),
    ]
    for question, truth in questions:
        asked, client = broken(monkeypatch, busy, busy, 0)
        assert question(asked) == truth
        assert client.asked == 3
        silent, client = broken(monkeypatch, busy)
        with pytest.raises(CouldNotAuditError, match=r"does not tell .* orders"):
            question(silent)
        assert client.asked == 40
        refusing, client = broken(monkeypatch, KafkaError.CLUSTER_AUTHORIZATION_FAILED)
        with pytest.raises(CouldNotAuditError, match=r"does not tell .* orders"):
            question(refusing)
        assert client.asked == 1


class Leaders:
    """Answers about the end of `orders/0`: offset and epoch of the leader. The last one repeats.

    Each client takes the next answer: the metadata of the previous client is out of date.
    """

    def __init__(self, *answers: tuple[int, int | None]) -> None:
        self.answers, self.clients = list(answers), 0

    def __call__(self, _: object) -> Leaders:
        self.clients += 1
        return self

    def list_topics(self, **_: object) -> None:
        """Return at once: the client has met a broker."""

    def list_offsets(self, wanted: dict[object, object], **_: object) -> dict[object, Future[object]]:
        offset, epoch = self.answers[min(self.clients, len(self.answers)) - 1]
        future: Future[object] = Future()
        future.set_result(SimpleNamespace(offset=offset, leader_epoch=epoch))
        return {next(iter(wanted)): future}


def led(monkeypatch: pytest.MonkeyPatch, *answers: tuple[int, int | None]) -> AuditedCluster:
    monkeypatch.setattr(kafka_admin, "AdminClient", Leaders(*answers))
    monkeypatch.setattr(kafka_admin.time, "sleep", lambda _: None)
    return AuditedCluster(kafka_settings("kafka:9092"))


def test_an_offset_that_is_none_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka answers so, without an error, for a partition whose leader has died."""
    asked = led(monkeypatch, (-1001, None), (-1001, None), (7, 4))
    assert asked.high_watermarks([A]) == {A: 7}
    with pytest.raises(CouldNotAuditError, match=r"the offsets of orders/0"):
        led(monkeypatch, (-1001, None)).log_starts([A])


def test_a_leader_that_was_deposed_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It answers with its old end until it hears of its successor."""
    asked = led(monkeypatch, (12, 5), (9, 4), (12, 5))
    assert asked.high_watermarks([A]) == {A: 12}
    asked._look_again()
    assert asked.high_watermarks([A]) == {A: 12}
    asked.forget_leaders()  # The topic is created again.
    asked._look_again()
    assert asked.high_watermarks([A]) == {A: 12}


def test_a_cut_of_a_leader_that_has_a_successor_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = led(monkeypatch, (9, 4), (12, 5))
    assert asked.high_watermarks([A]) == {A: 9}
    with pytest.raises(ElectionError, match="orders/0 got another leader during the audit"):
        asked.refuse_moved([A, B])
    asked.refuse_moved([A, B])
    old = led(monkeypatch, (9, None), (12, None))  # A broker that reports no epochs.
    assert old.high_watermarks([A]) == {A: 9}
    old.refuse_moved([A])


def test_misspelt_cluster_is_told_at_once_and_a_busy_one_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    busy, client = broken(monkeypatch, KafkaError._TRANSPORT, KafkaError._TIMED_OUT, 0)
    assert busy.partition_counts() == {"orders": 2}
    assert client.asked == 3
    client.codes, client.asked = (KafkaError._TRANSPORT,), 0
    never = AuditedCluster(kafka_settings("kafka:9092"))
    with pytest.raises(CouldNotAuditError, match=r"kafka:9092 cannot be reached .*: check --bootstrap-servers"):
        never.partition_counts()
    assert client.asked == 1


def test_topic_that_may_not_be_seen_is_not_taken_for_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, _ = broken(monkeypatch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
    assert hidden.forbidden_topics(["orders"]) == ["orders"]
    missing, _ = broken(monkeypatch, KafkaError.UNKNOWN_TOPIC_OR_PART)
    assert missing.forbidden_topics(["orders"]) == []
    away, _ = broken(monkeypatch, KafkaError._TIMED_OUT)
    with pytest.raises(CouldNotAuditError, match="whether there is a topic orders"):
        away.forbidden_topics(["orders"])


@pytest.mark.parametrize("path", ["s3a://bucket/ledger", "hdfs://nn:8020/ledger", "myfs:/ledger"])
def test_the_state_is_kept_on_this_machine_alone(path: str) -> None:
    """Neither Kafka nor Spark is asked first: both are absent here."""
    told = "^the state of --continue and --follow is in a folder of this machine"
    with pytest.raises(CouldNotAuditError, match=told):
        run_audit("127.0.0.1:1", ledger_path=path, continued=True)
    with pytest.raises(CouldNotAuditError, match=told):
        follow("127.0.0.1:1", path, stop=threading.Event())


@pytest.mark.parametrize("path", ["file:///data/l", "/data/s3a:/l", "l", "./gs:x"])
def test_a_folder_of_this_machine_holds_the_state(path: str) -> None:
    continued_folder(AuditSelection(), path, by_spark=False, with_overview=False)


def test_a_ledger_that_cannot_be_continued_is_refused_before_kafka_is_asked(tmp_path: Path) -> None:
    """There is no Kafka here."""
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "once" / "day=2026-11-23").mkdir(parents=True)

    def refuses(told: str, path: str = "new", **more: Any) -> None:
        with pytest.raises(CouldNotAuditError, match=told):
            run_audit("127.0.0.1:1", ledger_path=str(tmp_path / path), continued=True, **more)
        with pytest.raises(CouldNotAuditError, match=told):
            follow("127.0.0.1:1", str(tmp_path / path), stop=threading.Event(), **more)

    for path in ("table", "once"):
        refuses("was not begun with --continue or --follow: give --ledger a new folder", path)
    refuses("are made by the local engine: leave --engine spark out", engine=AuditEngine.SPARK)


def test_what_retention_removed_unread_ends_a_continued_audit() -> None:
    """In a topic whose records may vanish at any time, the rest is read. A new partition begins at its log start."""
    seen = Seen({A: 10}, {}, {}, {}, frozenset(), discards_cut=False)
    assert seen.start_of({A: 10, B: 3}, whole=True) == {A: 10, B: 3}
    assert seen.start_of({A: 15}, whole=False) == {A: 15}
    with pytest.raises(CouldNotAuditError, match="has removed orders/0 from 10 to 15, which no audit has read"):
        seen.start_of({A: 15}, whole=True)


def test_ranges() -> None:
    assert ranges({A: 3, B: 9}, {A: 5, B: 7}) == {A: Range(3, 5), B: Range(7, 7)}
    assert ranges({A: 3, B: 9}, {A: 5, B: 7})[B].empty


def test_options_of_both_clients() -> None:
    settings = kafka_settings("kafka:9092", {"socket.timeout.ms": "5000", "security.protocol": "SSL"})
    assert settings.librdkafka["socket.timeout.ms"] == "5000"
    assert settings.spark == {"kafka.security.protocol": "SSL", "kafka.bootstrap.servers": "kafka:9092"}


def test_login_is_translated() -> None:
    options = {"sasl.mechanisms": "SCRAM-SHA-512", "sasl.username": "audit", "sasl.password": 'a"b\\c'}
    spark = kafka_settings("kafka:9092", options).spark
    assert spark["kafka.sasl.mechanism"] == "SCRAM-SHA-512"
    assert spark["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        r'username="audit" password="a\"b\\c";'
    )


def test_certificates_are_sent_as_text(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    options = {"ssl.ca.location": str(tmp_path / "ca.pem"), "ssl.key.pem": "KEY", "ssl.certificate.pem": "CERTIFICATE"}
    spark = kafka_settings("kafka:9092", options).spark
    assert spark["kafka.ssl.truststore.type"] == spark["kafka.ssl.keystore.type"] == "PEM"
    assert spark["kafka.ssl.truststore.certificates"] == "CA"
    assert spark["kafka.ssl.keystore.key"] == "KEY"
    assert spark["kafka.ssl.keystore.certificate.chain"] == "CERTIFICATE"


def test_java_options_reach_spark_alone() -> None:
    settings = kafka_settings("kafka:9092", {"java.sasl.jaas.config": "login"})
    assert settings.spark["kafka.sasl.jaas.config"] == "login"
    assert settings.librdkafka == {"bootstrap.servers": "kafka:9092"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"isolation.level": "read_uncommitted"}, "sets isolation.level itself"),
        ({"java.group.id": "mine"}, "sets group.id itself"),
        ({"sasl.username": "audit", "sasl.mechanism": "OAUTHBEARER"}, "give java.sasl.jaas.config"),
        ({"ssl.ca.location": "/no/such/file"}, "cannot be read"),
        ({"enable.ssl.certificate.verification": "false"}, "give the CA"),
    ],
)
def test_options_that_can_not_work(options: dict[str, str], message: str) -> None:
    with pytest.raises(CouldNotAuditError, match=message):
        kafka_settings("kafka:9092", options)


def test_times_of_a_selection() -> None:
    """1,700,000,000 s is 2023-11-14 22:13:20 UTC."""
    chosen = selection_of("2023-11-14T22:13:20", "2023-11-15T00:13:20.5+01:00", ["orders", "orders"])
    assert (chosen.since, chosen.until) == (1_700_000_000_000, 1_700_003_600_500)
    assert chosen.topics == {"orders"}
    assert selection_of(None, None, []) == AuditSelection()


def report(violations: Tally = Tally(), findings: Tally = Tally(), **fates: int) -> AuditReport:  # noqa: B008
    return AuditReport(
        namespace="",
        transactions=sum(fates.values()),
        fates=dict.fromkeys(FATES, 0) | fates,
        pending_states=dict.fromkeys(PENDING_STATES, 0) | {"held": fates.get("pending", 0)},
        violations=violations,
        findings=findings,
        delivered_more_than_once=0,
        rolled_back_but_visible=0,
        answered_by_check=0,
        cuts={"orders": {"0": {"start": 0, "before": 3, "end": 5}}},
        started_at=1_700_000_000_000,
        seconds=1.25,
    )


LOST = Entry("LOST", "gone", "0123ABCD", "billing", "orders", (Place("half", "HALF", 0, 7), Place("op", "OP", 0, 2)))


def shown(of: AuditReport) -> str:
    console = Console(file=io.StringIO(), width=160)
    print_report(of, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_json_form() -> None:
    data = json.loads(report(Tally({"LOST": 1}, (LOST,)), delivered=2, LOST=1).to_json())
    assert set(data) == {
        *("format", "clean", "namespace", "cluster_id", "bootstrap_servers", "transactions", "fates", "delivered"),
        *(
            "delivered_more_than_once",
            "rolled_back",
            "rolled_back_but_visible",
            "answered_by_check",
            "pending",
            "pending_states",
            "abandoned",
            "cancelled",
            "delivered_before_given_up",
            "discarded",
        ),
        *("unverifiable", "rows", "violations", "findings", "findings_to_act_on", "unjudged"),
        *("selection", "cuts", "started_at", "seconds", "version", "engine", "limits"),
        *("accepted", "stale_acceptances", "read_at", "topic_ids", "continued", "lost_since"),
    }
    assert (data["clean"], data["transactions"], data["delivered"], data["seconds"]) == (False, 3, 2, 1.25)
    assert data["violations"] == {
        "total": 1,
        "by_kind": {"LOST": 1},
        "listed": [
            {
                "id": "LOST HALF/0@7",
                "kind": "LOST",
                "says": "gone",
                "transaction": "0123ABCD",
                "group": "billing",
                "real_topic": "orders",
                "evidence": [
                    {"role": "half", "topic": "HALF", "partition": 0, "offset": 7},
                    {"role": "op", "topic": "OP", "partition": 0, "offset": 2},
                ],
                "id_sha256": None,
                "prepared_at": None,
                "decided_at": None,
                "delivered_at": None,
                "actions": [],
                "accepted": None,
            }
        ],
    }


def test_exit_code() -> None:
    assert (report(delivered=1).clean, report(delivered=1).exit_code) == (True, 0)
    assert report(Tally({"LOST": 1}), LOST=1).exit_code == 1
    # Only --strict counts findings, except those about other applications' records.
    assert report(findings=Tally({"LATE": 1}), unverifiable=1).strict_exit_code == 1
    assert report(findings=Tally({"FOREIGN_COPY": 3, "HALF_GONE": 1}), pending=1).strict_exit_code == 0
    assert report(Tally({"LOST": 1}), LOST=1).strict_exit_code == 1
    # Findings and unverifiable transactions are no violations.
    assert report(findings=Tally({"LATE": 1}), unverifiable=1).exit_code == 0


def test_table_of_a_clean_audit() -> None:
    text = shown(report(delivered=12_345, pending=2))
    assert "clean: 12,347 transactions in 1.2 s" in text
    assert "pending: held 2" in text
    assert "Violations" not in text
    assert "Findings" not in text


def test_evidence_is_whole_and_some_of_each_kind_is_shown() -> None:
    """On a terminal of 80 columns, as in the log of a CI job."""
    topic = "a-namespace-of-some-length.RMQ_SYS_TRANS_HALF_TOPIC_and-still-longer-than-eighty-columns-of-a-terminal"
    late = Entry("WRONG_WINNER", "too late", "4567CDEF", evidence=(Place("half", topic, 11, 123_456_789),))
    out = io.StringIO()
    print_report(
        report(Tally({"LOST": 25, "WRONG_WINNER": 1}, (*(LOST,) * 25, late)), LOST=25), Console(file=out, width=80)
    )
    assert f"half {topic}/11@123456789" in out.getvalue()
    assert "…" not in out.getvalue()
    assert f"{rule_of('WRONG_WINNER')})" in out.getvalue()


def test_table_shows_evidence_of_the_first_rows() -> None:
    text = shown(report(Tally({"LOST": 25}, (LOST,) * 25), Tally({"LATE": 3}), LOST=25))
    assert "25 violations: 25 transactions" in text
    assert "half HALF/0@7" in text
    assert "op OP/0@2" in text
    assert "5 of 25, some of each kind; --report FILE has more" in text
    assert text.count("0123ABCD") == 5
    assert "LATE" in text


def test_every_verdict_has_an_anchor_in_the_docs() -> None:
    text = (Path(__file__).parents[3] / "docs" / "audit.md").read_text(encoding="utf-8")
    for kind in (*VIOLATIONS, *FINDINGS):
        assert f'<a id="{kind.lower()}"></a>' in text, kind


def test_every_fate_has_a_rule_and_says_something() -> None:
    assert {rule.kind.name for rule in fates.RULES} == set(FATES)
    assert all(rule.says for rule in fates.RULES)
    assert fates.RULES[-1].kind is fates.PENDING


def test_what_differs_is_named() -> None:
    ours: list[tuple[str, bytes | None]] = [("TXB_V", b"1"), ("UNIQ_KEY", b"A"), ("REAL_TOPIC", b"orders")]
    added: list[tuple[str, bytes | None]] = [("UNIQ_KEY", b"A"), ("TXB_HALF", b"0:7")]
    users: list[tuple[str, bytes | None]] = [("trace", b"1"), ("more", None)]
    half = KafkaRecord("HALF", 0, 7, 1_000, False, b"k", b"v", [*users, *ours])

    def differ(
        key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None], dated: int = 1_000, of: Any = half
    ) -> list[str]:
        return list(differing(of, KafkaRecord("orders", 0, 3, dated, True, key, value, [*headers, *added])))

    assert differ(b"k", b"v", *users) == []
    assert differ(b"K", None, *users) == ["key", "value"]
    assert differ(b"k", b"v", ("trace", b"2"), ("more", b"")) == ["header more", "header trace"]
    assert differ(b"k", b"v", *users[::-1]) == ["order of headers"]
    assert differ(b"k", b"v", *users, ("TXB_FOO", b"1"), ("UNIQ_KEY", b"B")) == ["header TXB_FOO", "header UNIQ_KEY"]
    assert differ(b"k", b"v", *users, dated=999) == ["timestamp"]
    born = half._replace(headers=[*half.headers, ("BORN_TIMESTAMP", b"999")])
    assert differ(b"k", b"v", *users, dated=999, of=born) == []
    # No time that a record can have: it has its own.
    endless = half._replace(headers=[*half.headers, ("BORN_TIMESTAMP", b"9" * 5_000)])
    assert differ(b"k", b"v", *users, of=endless) == []
    several = half._replace(headers=[*half.headers, ("TXB_MESSAGES", b"2")])
    assert differ(b"k", b"w", *users, of=several) == ["one of its messages"]


def test_what_is_wrong_without_spark_is_said_before_it_starts(tmp_path: Path) -> None:
    """No broker listens at the address, and no Spark is connected."""
    (tmp_path / "_audit").mkdir()
    (tmp_path / "_audit" / "report.json").touch()
    for path in (str(tmp_path), f"file://{tmp_path}"):
        with pytest.raises(CouldNotAuditError, match="already, or something else: give --ledger a new folder"):
            run_audit("127.0.0.1:1", ledger_path=path)
    with pytest.raises(CouldNotAuditError, match=r"'a b' cannot be a namespace: .* check --namespace"):
        run_audit("127.0.0.1:1", namespace="a b")
    for topic in ("no topic", "__consumer_offsets", "other.RMQ_SYS_TRANS_HALF_TOPIC"):
        with pytest.raises(CouldNotAuditError, match="cannot be a real topic: check --only-topic"):
            selection_of(None, None, [topic])


def test_an_address_where_nobody_answers_is_told_within_ten_seconds() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        asked = AuditedCluster(kafka_settings(f"127.0.0.1:{silent.getsockname()[1]}"))
        assert kafka_admin._FIRST_TIMEOUT <= 8
        with pytest.raises(CouldNotAuditError, match=r"cannot be reached .*: check --bootstrap-servers"):
            asked.partition_counts()
