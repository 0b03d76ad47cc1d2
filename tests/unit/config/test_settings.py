"""The worker's options from flags, environment and file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.tables import of_options
from txbridge.config.sources import load_settings
from txbridge.config.worker import OPTIONS, WorkerSettings
from txbridge.errors import UsageError
from txbridge.kafka import config as kafka_config
from txbridge.worker.http.monitor import Monitor

MINIMAL = {"bootstrap_servers": "a:1"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "configuration.md"


def load(flags=None, environ=None, file=None):
    return load_settings(flags or {}, file, environ or {})


def problems(flags=None, environ=None, file=None):
    with pytest.raises(UsageError) as caught:
        load(flags, environ, file)
    return str(caught.value).split("\n")


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "worker.toml"
        path.write_text(text, "utf-8")
        return path

    return write


def test_defaults_are_rocketmqs():
    assert load(MINIMAL).model_dump() == {
        "bootstrap_servers": "a:1",
        "namespace": "",
        "app_id": "CID_RMQ_SYS_TRANS",
        "transaction_timeout": 6_000,
        "transaction_check_interval": 30_000,
        "transaction_check_max": 15,
        "transaction_max_age": 259_200_000,
        "transaction_check_rate": 1_000,
        "commit_interval": 0.02,
        "timer_max_delay": 259_200,
        "payload_memory": 268_435_456,
        "park_after": 30_000,
        "park_after_records": 100_000,
        "park_after_bytes": 67_108_864,
        "session_timeout": 6_000,
        "commit_timeout": 10_000,
        "metrics_port": 0,
        "metrics_host": "127.0.0.1",
        "metrics_max_groups": 100,
        "log_format": "auto",
        "status_page": "off",
        "log_level": "info",
        "kafka": {},
    }


def test_flags_beat_environment_beat_file_beats_defaults(write):
    file = write(
        "transaction_timeout = 1\ntransaction_check_interval = 1\ntransaction_check_max = 1\nnamespace = 'f'\n"
    )
    environ = {"TXBRIDGE_TRANSACTION_TIMEOUT": "2", "TXBRIDGE_TRANSACTION_CHECK_INTERVAL": "2", "PATH": "/bin"}
    settings = load({**MINIMAL, "transaction_timeout": "3", "namespace": None}, environ, file)
    assert settings.transaction_timeout == 3
    assert settings.transaction_check_interval == 2
    assert settings.transaction_check_max == 1
    assert settings.namespace == "f"
    assert settings.transaction_max_age == 259_200_000
    assert type(settings) is WorkerSettings


def test_the_process_environment_is_read_and_empty_variables_count_as_absent(write, monkeypatch):
    monkeypatch.setenv("TXBRIDGE_CONFIG", str(write("bootstrap_servers = 'file:1'")))
    monkeypatch.setenv("TXBRIDGE_TRANSACTION_TIMEOUT", "")
    monkeypatch.setenv("TXBRIDGE_NAMESPACE", "env")
    settings = load_settings({})
    assert (settings.bootstrap_servers, settings.transaction_timeout, settings.namespace) == ("file:1", 6_000, "env")
    assert WorkerSettings(bootstrap_servers="a:1").namespace == ""


@pytest.mark.parametrize("spelling", ["transactionTimeOut", "transactionTimeout", "transaction_timeout"])
def test_rocketmqs_spellings_in_files(write, spelling):
    file = write(f"{spelling} = 3000\ntransactionCheckInterval = 4000\ntransactionCheckMax = 3\n")
    settings = load(MINIMAL, file=file)
    assert settings.transaction_timeout == 3_000
    assert settings.transaction_check_interval == 4_000
    assert settings.transaction_check_max == 3


def test_two_spellings_of_one_option_are_refused(write):
    file = write("transactionTimeOut = 3000\ntransaction_timeout = 4000\n")
    assert problems(MINIMAL, file=file) == [f"transaction_timeout ({file}): transaction_timeout is given twice"]


def test_unknown_options_name_the_nearest(write):
    file = write("transaction_timeot = 1\ntransactionCheckmax = 5\ncolour = 'red'\n")
    assert problems(MINIMAL, file=file) == [
        f"unknown option 'transaction_timeot' ({file}); did you mean 'transaction_timeout'?",
        f"unknown option 'transactionCheckmax' ({file}); did you mean 'transactionCheckMax'?",
        f"unknown option 'colour' ({file})",
    ]
    assert problems({**MINIMAL, "transaction_timeot": "1"}, {"TXBRIDGE_TRANSACTION_TIMEOT": "1"}) == [
        "unknown option '--transaction-timeot'; did you mean '--transaction-timeout'?",
        "unknown option 'TXBRIDGE_TRANSACTION_TIMEOT'; did you mean 'TXBRIDGE_TRANSACTION_TIMEOUT'?",
    ]


@pytest.mark.parametrize(
    "name", ["CACHE_DIR", "FAULT_POINT", "MAVEN_REPOSITORY", "DATABASE_URL", "ROCKETMQ_SECRET", "ROCKETMQ_LISTEN"]
)
def test_other_variables_of_ours_are_no_options(name):
    assert load(MINIMAL, {f"TXBRIDGE_{name}": "x"}) == load(MINIMAL)


def test_bootstrap_servers_are_required():
    assert problems() == [
        (
            "bootstrap_servers is missing: give --bootstrap-servers, TXBRIDGE_BOOTSTRAP_SERVERS or bootstrap_servers "
            "in the configuration file"
        )
    ]


def test_every_wrong_value_is_one_line_that_says_where_and_what(write):
    file = write("transaction_check_max = true\npark_after_bytes = 1.5\n")
    flags = {
        "bootstrap_servers": "",
        "namespace": "a b",
        "transaction_timeout": "-5",
        "transaction_check_interval": "soon",
        "log_level": "loud",
        "commit_timeout": "1000000",
    }
    assert problems(flags, {"TXBRIDGE_PAYLOAD_MEMORY": "1", "TXBRIDGE_APP_ID": "ü"}, file) == [
        "--bootstrap-servers: must not be empty, not ''",
        "--namespace: must be at most 100 characters of A-Z a-z 0-9 . _ -, not 'a b'",
        "TXBRIDGE_APP_ID: must be characters of A-Z a-z 0-9 . _ -, not 'ü'",
        "--transaction-timeout: must be at least 1 ms, not '-5'",
        "--transaction-check-interval: must be a whole number of ms, not 'soon'",
        f"transaction_check_max ({file}): must be a whole number, not True",
        "TXBRIDGE_PAYLOAD_MEMORY: must be at least 1048576 bytes, not '1'",
        f"park_after_bytes ({file}): must be a whole number of bytes, not 1.5",
        "--commit-timeout: must be at most 900000 ms, not '1000000'",
        "--log-level: must be one of debug, info, warning, error, not 'loud'",
    ]
    assert problems({"bootstrap_servers": 5, "transaction_check_max": "0"}) == [
        "--bootstrap-servers: must be text, not int",
        "--transaction-check-max: must be at least 1, not '0'",
    ]


def test_checks_must_fit_into_the_life_of_a_message():
    assert problems({**MINIMAL, "transaction_max_age": "456000"}) == [
        (
            "transaction_timeout + transaction_check_max * transaction_check_interval (456000 ms) must be less than "
            "transaction_max_age (456000 ms), or messages expire unchecked"
        )
    ]
    assert load({**MINIMAL, "transaction_max_age": "456001"}).transaction_max_age == 456_001


def test_names_derive_from_the_namespace():
    assert load({**MINIMAL, "namespace": "staging"}).app_id == "staging.CID_RMQ_SYS_TRANS"
    assert load({**MINIMAL, "namespace": "staging", "app_id": "mine"}).app_id == "mine"


def test_choices_in_any_case():
    settings = load({**MINIMAL, "log_level": "DEBUG", "log_format": "Json"})
    assert (settings.log_level, settings.log_format) == ("debug", "json")


def test_kafka_properties_are_merged_name_by_name(write):
    file = write(
        '[kafka]\nbootstrap.servers = "file:1"\nlinger.ms = 5\n"socket.keepalive.enable" = true\nretries = 9\n'
    )
    environ = {"TXBRIDGE_KAFKA": '{"queue.buffering.max.ms": 6, "retries": 8}'}
    settings = load({"kafka": ["linger.ms=7", "sasl.password=a=b"]}, environ, file)
    assert settings.bootstrap_servers == "file:1"
    assert settings.kafka == {"linger.ms": "7", "retries": 8, "socket.keepalive.enable": True, "sasl.password": "a=b"}
    assert settings.librdkafka == {**settings.kafka, "bootstrap.servers": "file:1"}


def test_bootstrap_servers_of_a_stronger_source_win_in_either_spelling(write):
    file = write('bootstrap_servers = "file:1"')
    assert load({"kafka": ["bootstrap.servers=flag:1"]}, file=file).bootstrap_servers == "flag:1"
    assert load(MINIMAL, {"TXBRIDGE_KAFKA": '{"metadata.broker.list": "env:1"}'}).bootstrap_servers == "a:1"


def test_bad_kafka_properties(write):
    assert problems({**MINIMAL, "kafka": {"acks": "1"}}) == [
        (
            "Kafka property 'acks' cannot be set: a half message counts as prepared only when all in-sync replicas "
            "have it (acks=all)"
        )
    ]
    assert problems({**MINIMAL, "kafka": ["linger.mss=1"]})[0].startswith(
        "unknown Kafka property 'linger.mss'; did you mean 'linger.ms'?"
    )
    given = ["linger.ms=5", "sasl.password:hunter2"]
    assert problems({**MINIMAL, "kafka": given}) == ["--kafka: must be name=value (number 2 of them)"]
    assert problems({**MINIMAL, "kafka": ["bootstrap.servers=b:1"]}) == ["--kafka: bootstrap.servers is given twice"]
    assert problems({**MINIMAL, "kafka": ["linger.ms=1", "queue.buffering.max.ms=2"]}) == [
        "--kafka: queue.buffering.max.ms is given twice"
    ]
    file = write('[kafka]\n"linger.ms" = [1]\n')
    of_the_file = [f"kafka ({file}): linger.ms must be text, a number, true or false"]
    assert problems(MINIMAL, file=file) == of_the_file
    # The layers' properties are merged, and the layer that gives the wrong one is named.
    assert problems({**MINIMAL, "kafka": ["client.id=x"]}, {"TXBRIDGE_KAFKA": '{"debug": "all"}'}, file) == of_the_file
    assert problems(MINIMAL, {"TXBRIDGE_KAFKA": "5"}) == ["TXBRIDGE_KAFKA: must be a table of librdkafka properties"]
    assert problems(MINIMAL, {"TXBRIDGE_KAFKA": "{"})[0].startswith("TXBRIDGE_KAFKA: must be JSON like")


def test_files_that_can_not_be_read(write, tmp_path):
    absent = tmp_path / "absent.toml"
    assert problems(MINIMAL, file=absent)[0].endswith(f"{absent} cannot be read: No such file or directory")
    file = write("transaction_timeout = = 5")
    assert problems(MINIMAL, file=file)[0].startswith(f"the configuration file {file} is not valid TOML: ")
    file.write_text("sasl.password = hunter2")
    assert "hunter2" not in problems(MINIMAL, file=file)[0]
    file.write_bytes(b"namespace = '\xff'")
    assert problems(MINIMAL, file=file)[0].startswith(f"the configuration file {file} is not valid TOML: ")


def test_what_differs_from_the_defaults_is_told_without_secrets():
    assert load(MINIMAL).changed_options() == {}
    given = {"namespace": "staging", "transaction_timeout": "10000", "transaction_check_max": "15"}
    pages = {"status_page": "read", "metrics_port": "9464"}
    settings = load({**MINIMAL, **given, **pages, "kafka": {"sasl.password": "tops3cret", "sasl.username": "me"}})
    assert settings.changed_options() == {
        "transaction_timeout": 10_000,
        "metrics_port": 9_464,
        "status_page": "read",
        "kafka": {"sasl.password": "***", "sasl.username": "me"},
    }
    assert "tops3cret" not in repr(settings)
    assert settings.librdkafka["sasl.password"] == "tops3cret"


def test_options_for_the_command_line():
    by_name = {option.name: option for option in OPTIONS}
    assert set(by_name) == set(WorkerSettings.model_fields)
    timeout = by_name["transaction_timeout"]
    assert (timeout.flag, timeout.variable) == ("--transaction-timeout", "TXBRIDGE_TRANSACTION_TIMEOUT")
    assert (timeout.default, timeout.unit) == ("6000", "ms")
    assert timeout.help == (
        "Age at which an undecided half message is checked for the first time (RocketMQ's transactionTimeOut)."
    )
    assert by_name["log_format"].choices == ("auto", "json", "console")
    assert all(option.help for option in OPTIONS)


def test_the_page_names_options_that_exist_and_the_site_lists_them_all():
    section = DOCUMENT.read_text("utf-8").partition("## The worker's options")[2].partition("\n## ")[0]
    names = {option.name for option in OPTIONS}
    assert set(re.findall(r"`([a-z]+_[a-z_]+)`", section)) <= names
    assert "<!-- table: options -->" in section
    listed = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", of_options(), re.MULTILINE))
    assert listed.keys() == names
    assert listed["session_timeout"].startswith("`6000` | ms | Silence after which a worker counts as dead")


def test_the_page_lists_every_refused_property():
    [told] = re.findall(r"so they are refused, with the reason: (.*?)\.\n\n", DOCUMENT.read_text("utf-8"), re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", told)) == kafka_config._REFUSED.keys()


def test_a_status_page_that_no_port_serves_stops_the_worker_and_no_other_command() -> None:
    """Other commands may share the file of a worker whose port is in its environment."""
    settings = load_settings({"bootstrap_servers": "127.0.0.1:1", "status_page": "READ"}, environ={})
    assert settings.status_page == "read"
    with pytest.raises(UsageError, match="status_page needs a metrics_port: that port serves it"):
        Monitor(settings)


#: Variables of every Kubernetes pod in a namespace with the Services `txbridge` and `txbridge-worker`.
SERVICE_LINKS = {
    "TXBRIDGE_SERVICE_HOST": "10.0.0.1",
    "TXBRIDGE_SERVICE_PORT": "8080",
    "TXBRIDGE_SERVICE_PORT_HTTP": "8080",
    "TXBRIDGE_PORT": "tcp://10.0.0.1:8080",
    "TXBRIDGE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    "TXBRIDGE_PORT_8080_TCP_PROTO": "tcp",
    "TXBRIDGE_PORT_8080_TCP_PORT": "8080",
    "TXBRIDGE_PORT_8080_TCP_ADDR": "10.0.0.1",
    "TXBRIDGE_WORKER_SERVICE_HOST": "fd00::1",
    "TXBRIDGE_WORKER_SERVICE_PORT": "9464",
    "TXBRIDGE_WORKER_PORT": "udp://[fd00::1]:9464",
    "TXBRIDGE_WORKER_PORT_9464_UDP": "udp://[fd00::1]:9464",
    "TXBRIDGE_WORKER_PORT_9464_UDP_PROTO": "udp",
    "TXBRIDGE_WORKER_PORT_9464_UDP_PORT": "9464",
    "TXBRIDGE_WORKER_PORT_9464_UDP_ADDR": "fd00::1",
}


def test_the_variables_that_kubernetes_makes_of_services_are_no_options():
    assert load(environ={"TXBRIDGE_BOOTSTRAP_SERVERS": "a:1", **SERVICE_LINKS}).bootstrap_servers == "a:1"


@pytest.mark.parametrize(
    ("links", "name", "value"),
    [
        ({}, "TXBRIDGE_PORT", "9464"),  # A misspelled metrics_port, perhaps.
        ({}, "TXBRIDGE_SERVICE_HOST", "10.0.0.1"),  # Without the port it is no service link.
        ({}, "TXBRIDGE_PORT_8080_TCP_PROTOCOL", "tcp"),
        ({}, "TXBRIDGE_SERVICE_PORTS", "8080"),
        # A person has set it over the link.
        (SERVICE_LINKS, "TXBRIDGE_PORT", "9464"),
    ],
)
def test_what_only_looks_like_a_service_link_is_an_unknown_option(links, name, value):
    [problem] = problems(MINIMAL, {**links, name: value})
    assert problem.startswith(f"unknown option {name!r}")


def test_an_option_that_a_service_link_hides_fails_by_its_name():
    """A Service `txbridge-metrics` makes a variable with an option's name. Its value is refused, not ignored."""
    links = {
        "TXBRIDGE_METRICS_SERVICE_HOST": "10.0.0.1",
        "TXBRIDGE_METRICS_SERVICE_PORT": "9464",
        "TXBRIDGE_METRICS_PORT": "tcp://10.0.0.1:9464",
    }
    [problem] = problems(MINIMAL, links)
    assert problem.startswith("TXBRIDGE_METRICS_PORT: must be a whole number")
    assert "enableServiceLinks: false" in problem
    assert load(MINIMAL, {**links, "TXBRIDGE_METRICS_PORT": "9464"}).metrics_port == 9464
