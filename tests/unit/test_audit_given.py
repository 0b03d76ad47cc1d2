"""Where the audit's Kafka options come from, which of them counts, and that no message repeats a secret."""

from __future__ import annotations

from pathlib import Path

import pytest
from txbridge_audit.errors import CouldNotAuditError
from txbridge_audit.given import kafka_options, parse_options


def test_pairs() -> None:
    assert parse_options(["a.b=c=d", "e="]) == {"a.b": "c=d", "e": ""}
    with pytest.raises(CouldNotAuditError, match="key=value"):
        parse_options(["=x"])


def test_the_command_line_counts_more_than_the_environment_and_that_more_than_the_file(tmp_path: Path) -> None:
    file = tmp_path / "worker.toml"
    file.write_text(
        """
        bootstrap_servers = "elsewhere:9092"
        transaction_timeout = 6000

        [kafka]
        "sasl.username" = "file"
        "sasl.password" = "file"
        "sasl.mechanism" = "PLAIN"
        ssl.ca.location = "/etc/ca.pem"
        "enable.ssl.certificate.verification" = true
        "socket.timeout.ms" = 5000
        """
    )
    environment = {"TXBRIDGE_KAFKA": '{"sasl.username": "environment", "sasl.password": "environment"}'}
    assert kafka_options(["sasl.username=flag"], file, environment) == {
        "sasl.username": "flag",
        "sasl.password": "environment",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": "/etc/ca.pem",
        "enable.ssl.certificate.verification": "true",
        "socket.timeout.ms": "5000",
    }


def test_nothing_given_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty.toml").touch()
    assert kafka_options([], tmp_path / "empty.toml", {"TXBRIDGE_KAFKA": ""}) == {}


def test_a_workers_brokers_are_not_the_audits() -> None:
    """--bootstrap-servers names them; given as an option they are refused as before."""
    environment = {"TXBRIDGE_KAFKA": '{"bootstrap.servers": "elsewhere:9092", "security.protocol": "ssl"}'}
    assert kafka_options([], None, environment) == {"security.protocol": "ssl"}
    assert kafka_options(["bootstrap.servers=x:1"], None, {}) == {"bootstrap.servers": "x:1"}


@pytest.mark.parametrize(
    ("pairs", "file", "variable", "message"),
    [
        (["sasl.password:hunter2"], None, "", "not of the form key=value"),
        ([], "sasl.password = hunter2", "", "is not valid TOML"),
        ([], "kafka = 'hunter2'", "", "must be a table"),
        ([], "kafka = { password = ['hunter2'] }", "", "password must be text, a number, true or false"),
        ([], None, "sasl.password=hunter2", "TXBRIDGE_KAFKA must be JSON"),
        ([], None, '["hunter2"]', "TXBRIDGE_KAFKA must be a table"),
    ],
)
def test_what_can_not_be_read_is_named_and_not_repeated(
    tmp_path: Path, pairs: list[str], file: str | None, variable: str, message: str
) -> None:
    path = None
    if file is not None:
        path = tmp_path / "config.toml"
        path.write_text(file)
    with pytest.raises(CouldNotAuditError, match=message) as caught:
        kafka_options(pairs, path, {"TXBRIDGE_KAFKA": variable})
    assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CouldNotAuditError, match=r"can not read the configuration file .*missing\.toml"):
        kafka_options([], tmp_path / "missing.toml", {})
