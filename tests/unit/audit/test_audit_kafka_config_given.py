"""The worker's settings that the audit uses."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import txbridge_audit
from txbridge_audit.audit import INTERVAL
from txbridge_audit.judge.facts import AuditLimits

from txbridge.cli.audit_options import AuditOptions
from txbridge.cli.audit_program import kafka_options, limits_of
from txbridge.cli.main import main
from txbridge.config.sources import load_settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "worker.toml"
    path.write_text(
        """
        bootstrap_servers = "broker:9092"
        namespace = "staging"
        transaction_check_max = 5

        [kafka]
        "sasl.username" = "file"
        "sasl.password" = "file"
        "sasl.mechanism" = "PLAIN"
        ssl.ca.location = "/etc/ca.pem"
        "enable.ssl.certificate.verification" = true
        "socket.timeout.ms" = 5000
        "java.sasl.kerberos.service.name" = "kafka"
        """
    )
    return path


def test_kafka_options_are_merged_by_name_from_flag_environment_and_file(file: Path) -> None:
    environment = {"TXBRIDGE_KAFKA": '{"sasl.username": "environment", "sasl.password": "environment"}'}
    settings = load_settings({"kafka": ["sasl.username=flag"]}, file, environment)
    assert kafka_options(settings) == {
        "sasl.username": "flag",
        "sasl.password": "environment",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": "/etc/ca.pem",
        "enable.ssl.certificate.verification": "true",
        "socket.timeout.ms": "5000",
        "java.sasl.kerberos.service.name": "kafka",
    }


def test_what_is_meant_for_the_audits_java_consumer_does_not_reach_librdkafka(file: Path) -> None:
    """One file serves both worker and audit."""
    assert "java.sasl.kerberos.service.name" not in load_settings({}, file, {}).librdkafka


def test_the_limits_are_those_that_the_workers_are_told(file: Path) -> None:
    settings = load_settings({}, file, {"TXBRIDGE_TRANSACTION_MAX_AGE": "900000"})
    assert limits_of(settings, None, None) == AuditLimits(5, 900_000)
    # Less than the worker's own options allow: they may have changed since.
    assert limits_of(settings, 3, 1_000) == AuditLimits(3, 1_000)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--namespace", "no spaces"], "--namespace: must be at most 100 characters"),
        (["--kafka", "nonsense"], "--kafka: must be name=value (number 1 of them)"),
        (["--kafka", "isolation.level=read_uncommitted"], "Kafka property 'isolation.level' cannot be set"),
        (["--kafka", "no.such.option=1"], "unknown Kafka property 'no.such.option'"),
        (
            ["--report", "no/such/folder/report.json"],
            "the folder of --report no/such/folder/report.json does not exist",
        ),
        (["--html", "no/such/folder/report.html"], "the folder of --html no/such/folder/report.html does not exist"),
        (["--since", "yesterday"], "--since 'yesterday' is not a time: write it as 2026-11-21"),
        (["--since", "2026-11-21", "--until", "2026-11-20T23:00"], "--until must be later than --since"),
        (["--continue"], "an audit is continued from its ledger: say which with --ledger"),
        (["--follow", "--ledger", "x", "--since", "2026-11-21"], "leave --since, --until and --only-topic out"),
        (["--follow", "--ledger", "x", "--html", "page.html"], "leave --html out, or audit in full"),
        (["--violations-topic", "alarms"], "--violations-topic needs --follow"),
    ],
)
def test_a_mistake_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], told: str
) -> None:
    """Before Kafka is asked: there is none. The line below the error may only name the place that it is about."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit, match="2"):
        main(["audit", "--bootstrap-servers", "127.0.0.1:9", *arguments])
    shown = capsys.readouterr()
    about = r"\(default namespace on the cluster at 127\.0\.0\.1:9\)\n"
    assert re.fullmatch(rf"(connecting\n)?error: [^\n]+\n({about})?", shown.err), shown.err
    assert told in shown.err
    assert (shown.out, list(tmp_path.iterdir())) == ("", [])


def test_the_program_for_spark_submit_is_the_command() -> None:
    """Run as spark-submit runs it: by its file, with its own folder first on the path."""
    program = Path(txbridge_audit.__file__).parent / "job.py"
    helps = [
        subprocess.run([sys.executable, *words, "--help"], capture_output=True, text=True, check=True).stdout
        for words in ([str(program)], ["-m", "txbridge_audit.job"], ["-m", "txbridge.cli.main", "audit"])
    ]
    assert helps[0] == helps[1] == helps[2]
    assert "Usage: txbridge audit" in helps[0]


def test_the_pause_between_two_steps_is_that_of_the_library() -> None:
    assert AuditOptions().interval == INTERVAL
