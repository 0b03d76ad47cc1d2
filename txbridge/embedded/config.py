"""Configuration of embedded nodes: properties, logging, flags of their JVMs, and a listener with TLS, SASL and ACLs."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from txbridge.embedded.ports import HOST
from txbridge.errors import EnvironmentProblemError, UsageError

#: `fast-start`: serial collector and the first compiler only, for tests. `throughput`: G1 and the optimising compiler,
#: for demos and measurements; it starts about half a second later and is several times faster when warm.
JvmProfile = Literal["fast-start", "throughput"]

_PROFILES: dict[str, tuple[str, ...]] = {
    "fast-start": ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    # The pause target is the one of Kafka's own start script. G1 must be named: on one core or with less than 2 GB the
    # JVM would choose the serial collector.
    "throughput": ("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"),
}

#: Number of brokers of a cluster that vote about the metadata. One of them may be down.
QUORUM = 3

#: Broker settings that the caller may not give, with their replacements.
RESERVED = {
    "listeners": "EmbeddedKafka(port=...) or --port",
    "controller.quorum.voters": "EmbeddedKafka(brokers=...) or --brokers",
    "controller.listener.names": "nothing: it is part of how the nodes reach each other",
    "process.roles": "EmbeddedKafka(brokers=...) or --brokers",
    "node.id": "nothing: brokers are numbered from 1 on",
    "log.dir": "EmbeddedKafka(data_dir=...) or --data-dir",
    "log.dirs": "EmbeddedKafka(data_dir=...) or --data-dir",
}
#: Each broker of a cluster has a value of its own.
_ONE_PER_BROKER = {
    "advertised.listeners": "one node (brokers=1)",
    "broker.rack": "nothing: broker N is in the rack rack-N",
}

_STATE_TOPICS = ("transaction.state.log", "share.coordinator.state.topic")
#: For one node and for several.
_DEFAULTS = {
    # Each partition costs files and start-up time; Kafka's 50 are for large clusters.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    # Topics are part of txbridge's contract and are created on purpose.
    "auto.create.topics.enable": "false",
    # There is no second member to wait for, and tests need dead members to be noticed soon.
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    # Transactions of a dead client are looked for once a second (Kafka: 10 s), so they end when their time-out says.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # The log cleaner allocates this at start; Kafka's 128 MB are for millions of keys. 2 MB hold 80,000.
    "log.cleaner.dedupe.buffer.size": "2097152",
}


def _replicated(factor: str, in_sync: str) -> dict[str, str]:
    return {
        **dict.fromkeys(("default.replication.factor", "offsets.topic.replication.factor"), factor),
        **{f"{name}.replication.factor": factor for name in _STATE_TOPICS},
        **dict.fromkeys(("min.insync.replicas", *(f"{name}.min.isr" for name in _STATE_TOPICS)), in_sync),
    }


_ONE_NODE = {
    # Nothing can be replicated.
    **_replicated("1", "1"),
    # The session of the only broker must not time out when the machine stalls or somebody pauses the broker. Every
    # partition would be without a leader for a moment, and Kafka 4.3.1 then loses transaction markers (see fencing.py).
    # No other broker could take over anyway. 24 days are the longest that Kafka's type can hold.
    "broker.session.timeout.ms": "2147483647",
    # A controlled shutdown has the same moment: it hands leaderships to the brokers that stay, and there is none.
    "controlled.shutdown.enable": "false",
}
# As in production, writes go on while one broker is down. Sessions and controlled shutdowns have Kafka's defaults.
_SEVERAL_NODES = _replicated("3", "2")

# A controller without a broker refuses these.
_BROKER_ONLY = {"advertised.listeners", "inter.broker.listener.name"}
# The session begins anew when the controller starts, and no broker is there to renew it.
_FENCING_SESSION_MS = "100"

_HEAP = re.compile(r"[1-9][0-9]*[kmgKMG]")

#: Loggers of a broker, as in Kafka's own configuration.
BROKER_LOGGERS = '<Root level="INFO"><AppenderRef ref="server"/></Root>'
#: Loggers that fencing.py reads: the controller's activation, sessions of brokers, and at DEBUG committed operations.
FENCING_LOGGERS = """<Logger name="org.apache.kafka.controller.QuorumController" level="DEBUG"/>
    <Logger name="org.apache.kafka.controller.ClusterControlManager" level="INFO"/>
    <Root level="WARN"><AppenderRef ref="server"/></Root>"""

_LOG4J2 = """<?xml version="1.0" encoding="UTF-8"?>
<!-- shutdownHook: Kafka logs its own shutdown, so logging must not end first. -->
<Configuration status="WARN" shutdownHook="disable">
  <Appenders>
    <RollingFile name="server" fileName="${sys:txbridge.logs}/server.log"
                 filePattern="${sys:txbridge.logs}/server.log.%i">
      <PatternLayout pattern="[%d] %p %m (%c)%n"/>
      <Policies><SizeBasedTriggeringPolicy size="10 MB"/></Policies>
      <DefaultRolloverStrategy max="3"/>
    </RollingFile>
  </Appenders>
  <Loggers>
    {loggers}
  </Loggers>
</Configuration>
"""


def check_overrides(config: Mapping[str, str], brokers: int = 1) -> dict[str, str]:
    """The caller's broker settings, or UsageError for one that would break a node."""
    reserved = RESERVED if brokers == 1 else RESERVED | _ONE_PER_BROKER
    for name, value in config.items():
        if name in reserved:
            raise UsageError(f"the broker setting {name!r} is set by txbridge; use {reserved[name]}")
        if not isinstance(value, str):
            raise UsageError(f"the broker setting {name!r} must be a text, as in server.properties, not {value!r}")
    return dict(config)


def check_heap(heap: str) -> str:
    if not _HEAP.fullmatch(heap):
        raise UsageError(f"heap must be a size as Java writes it, such as '512m' or '2g', not {heap!r}")
    return heap


def check_profile(profile: str) -> str:
    if profile not in _PROFILES:
        raise UsageError(f"jvm_profile must be one of {', '.join(_PROFILES)}, not {profile!r}")
    return profile


def broker_properties(port: int, controller_port: int, log_dir: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    """All settings of a single node; `overrides` win."""
    return {
        **_DEFAULTS,
        **_ONE_NODE,
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": str(log_dir),
        **overrides,
    }


@dataclass(frozen=True, slots=True)
class BrokerPorts:
    """The ports of a broker on the loopback address: for clients, for other brokers, for the quorum."""

    node_id: int
    port: int
    internal: int
    controller: int


def cluster_properties(
    own: BrokerPorts, brokers: Sequence[BrokerPorts], log_dir: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """All settings of one broker of several; `overrides` win. The first three are controllers as well."""
    quorum = brokers[:QUORUM]
    listeners = f"PLAINTEXT://{HOST}:{own.port},INTERNAL://{HOST}:{own.internal}"
    is_controller = own in quorum
    return {
        **_DEFAULTS,
        **_SEVERAL_NODES,
        "process.roles": "broker,controller" if is_controller else "broker",
        "node.id": str(own.node_id),
        "controller.quorum.voters": ",".join(f"{one.node_id}@{HOST}:{one.controller}" for one in quorum),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"{listeners},CONTROLLER://{HOST}:{own.controller}" if is_controller else listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "INTERNAL",
        "broker.rack": f"rack-{own.node_id}",
        "log.dirs": str(log_dir),
        **overrides,
    }


def fencing_properties(controller_port: int, log_dir: Path, overrides: Mapping[str, str]) -> dict[str, str]:
    """Settings of the same node as a controller only, which ends the session of the broker at once."""
    everything = broker_properties(controller_port, controller_port, log_dir, overrides)
    return {
        **{name: value for name, value in everything.items() if name not in _BROKER_ONLY},
        "process.roles": "controller",
        "listeners": f"CONTROLLER://{HOST}:{controller_port}",
        "broker.session.timeout.ms": _FENCING_SESSION_MS,
    }


def render_properties(properties: Mapping[str, str]) -> str:
    """A Java properties file. Java reads it as Latin-1; what is beyond ASCII, it escapes as JSON does."""
    return "".join(f"{_escape(name, '[ :=#!]')}={_escape(value, '^ ')}\n" for name, value in properties.items())


def _escape(text: str, also: str) -> str:
    return re.sub(also, r"\\\g<0>", json.dumps(text)[1:-1])


def log4j2_configuration(loggers: str = BROKER_LOGGERS) -> str:
    """A configuration that writes the output of these loggers to server.log, 40 MB at most."""
    return _LOG4J2.replace("{loggers}", loggers)


def jvm_flags(profile: str, heap: str, log_dir: Path, log_config: Path) -> list[str]:
    return [
        f"-Xmx{heap}",
        *_PROFILES[profile],
        # A broker that has lost a thread to a full heap answers only some requests. A dead broker is noticed.
        "-XX:+ExitOnOutOfMemoryError",
        # No hsperfdata file: it is left behind by kill -9, and writing it can stall the JVM on a busy disk.
        "-XX:-UsePerfData",
        f"-XX:ErrorFile={log_dir}/hs_err_%p.log",
        "-Djava.awt.headless=true",
        f"-Dlog4j2.configurationFile={log_config}",
        "-Dlog4j2.disableJmx=true",
        f"-Dtxbridge.logs={log_dir}",
    ]


#: The user who may do everything. Its settings are in a file.
SUPERUSER = "txbridge"
_MECHANISM = "SCRAM-SHA-512"
# Kafka's least number of rounds: there is nothing to protect.
_ROUNDS = 4096
# Keys are made in a second, and a user in milliseconds; a minute is for an overloaded machine.
_TIMEOUT_S = 60.0


class SecureListener:
    """SASL_SSL with SCRAM-SHA-512. A user has the rights that ACLs give; SUPERUSER and the plain port have all.

    Keys and password are made once for a data folder.
    """

    def __init__(self, folder: Path, port: int, plain: str) -> None:
        self.port = port
        self._plain = plain
        self._store, self._certificate = folder / "broker.p12", folder / "ca.pem"
        self._secret = folder / "password"
        #: A TOML file with the settings of SUPERUSER, for `--config`; a client takes its table `kafka`.
        self.settings_file = folder / "client.toml"

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of SUPERUSER, for librdkafka."""
        return self._settings_of(SUPERUSER, self._secret.read_text())

    def make_keys(self, keytool: Path) -> None:
        """Make the folder, its password, the broker's key and the certificate, unless they are there.

        The certificate is self-signed for the loopback address, so it is also what clients trust. Raises
        EnvironmentProblemError.
        """
        if self._certificate.exists():
            return
        self._store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.unlink(missing_ok=True)
        self._secret.write_text(secrets.token_urlsafe(24))
        common: list[str | Path] = ["-keystore", self._store, "-storepass:file", self._secret, "-alias", "broker"]
        key = ["-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-dname", "CN=txbridge", "-validity", "3650"]
        _run([keytool, *key, "-ext", f"SAN=IP:{HOST}", *common])
        # Written last: it says that all are there.
        self._certificate.write_bytes(_run([keytool, "-exportcert", "-rfc", *common]))

    def properties(self, plain_port: int, controller_port: int) -> dict[str, str]:
        """The broker's settings for both listeners."""
        plain, secure = f"PLAINTEXT://{HOST}:{plain_port}", f"SECURE://{self.bootstrap_servers}"
        return {
            "listeners": f"{plain},{secure},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"{plain},{secure}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.secure.sasl.enabled.mechanisms": _MECHANISM,
            f"listener.name.secure.{_MECHANISM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.secure.ssl.keystore.type": "PKCS12",
            "listener.name.secure.ssl.keystore.location": str(self._store),
            "listener.name.secure.ssl.keystore.password": self._secret.read_text(),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # On the plain port nobody has a name: the broker itself, its controller, administrators.
            "super.users": f"User:ANONYMOUS;User:{SUPERUSER}",
        }

    def make_superuser(self) -> None:
        """Make SUPERUSER on the running broker, and write its settings. Raises EnvironmentProblemError."""
        settings = self.add_user(SUPERUSER, self._secret.read_text())
        lines = (f"{json.dumps(name)} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
        self.settings_file.write_text(f"[kafka]\n{''.join(lines)}", encoding="utf-8")

    def add_user(self, name: str, password: str = "") -> dict[str, str]:
        """Make a user without any right, or change a password; by default it is a random one.

        Returns librdkafka's settings of the user. Raises EnvironmentProblemError.
        """
        chosen = password or secrets.token_urlsafe(24)
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ROUNDS)
        change = UserScramCredentialUpsertion(name, credential, chosen.encode())
        # It must live until the answer is there.
        admin = AdminClient({"bootstrap.servers": self._plain})
        try:
            admin.alter_user_scram_credentials([change])[name].result(_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise EnvironmentProblemError(f"the embedded Kafka did not make the user {name}: {error}") from error
        return self._settings_of(name, chosen)

    def _settings_of(self, name: str, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self._certificate),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
        }


def _run(command: list[str | Path]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S).stdout
    except FileNotFoundError:
        raise EnvironmentProblemError(
            f"there is no {command[0]}, which makes the keys of a secured Kafka: install a complete Java 17 or later "
            "(for example `apt-get install openjdk-17-jre-headless`), or point JAVA_HOME to one"
        ) from None
    except subprocess.SubprocessError as error:
        said = getattr(error, "stdout", None) or b""
        raise EnvironmentProblemError(f"{error}: {said.decode(errors='replace').strip()}") from None
