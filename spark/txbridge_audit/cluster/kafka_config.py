"""One set of Kafka options for two clients: librdkafka (offsets) and the Java consumer inside Spark (records).

Users give librdkafka's names, as everywhere in txbridge. The options that decide how to connect are translated for
Spark. `java.<name>` goes to Spark's consumer alone, for options without a counterpart (Kerberos, OAuth, key stores).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from txbridge.errors import UsageError
from txbridge.kafka.config import JAVA_PREFIX, canonical_servers
from txbridge_audit.errors import CouldNotAuditError

#: The audit sets these itself, because its verdicts depend on them.
_REFUSED = frozenset(
    {"bootstrap.servers", "isolation.level", "group.id", "auto.offset.reset", "enable.auto.commit", "transactional.id"}
)
#: Options with the same name and meaning in both clients.
_SHARED = frozenset({"security.protocol", "sasl.mechanism", "sasl.kerberos.service.name"})

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}

#: By the beginning of librdkafka's names: Java's names for the type of a store, and for its content. Files
#: (`.location`) are sent as text like `.pem`: Spark's executors may run on machines that do not have them.
_PEM = {
    "ssl.ca": ("ssl.truststore.type", "ssl.truststore.certificates"),
    "ssl.certificate": ("ssl.keystore.type", "ssl.keystore.certificate.chain"),
    "ssl.key": ("ssl.keystore.type", "ssl.keystore.key"),
}


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """The connection settings of both clients."""

    #: For confluent-kafka, `bootstrap.servers` included.
    librdkafka: Mapping[str, str] = field(repr=False)
    #: For Spark's reader, with its prefix `kafka.`.
    spark: Mapping[str, str] = field(repr=False)

    @property
    def bootstrap_servers(self) -> str:
        return self.librdkafka["bootstrap.servers"]


def kafka_settings(bootstrap_servers: str, options: Mapping[str, str] | None = None) -> KafkaSettings:
    """Settings of both clients from librdkafka's names.

    Raises CouldNotAuditError for options that would undermine the audit, cannot be translated or name files that
    cannot be read.
    """
    options = dict(options or {})
    refused = sorted(_REFUSED & {name.removeprefix(JAVA_PREFIX) for name in options})
    if refused:
        raise CouldNotAuditError(f"the audit sets {', '.join(refused)} itself: remove the option")
    java = {name.removeprefix(JAVA_PREFIX): value for name, value in options.items() if name.startswith(JAVA_PREFIX)}
    native = {name: value for name, value in options.items() if not name.startswith(JAVA_PREFIX)}
    try:
        servers = canonical_servers(bootstrap_servers, native.get("security.protocol"))
    except UsageError as error:
        raise CouldNotAuditError(str(error)) from None
    spark = {**_translated(native), **java, "bootstrap.servers": servers}
    return KafkaSettings(
        librdkafka={**native, "bootstrap.servers": servers},
        spark={f"kafka.{name}": value for name, value in spark.items()},
    )


def _translated(native: Mapping[str, str]) -> dict[str, str]:
    native = {"sasl.mechanism" if name == "sasl.mechanisms" else name: value for name, value in native.items()}
    java = {name: value for name, value in native.items() if name in _SHARED}
    if "sasl.username" in native:
        java["sasl.jaas.config"] = _login(native)
    if native.get("ssl.endpoint.identification.algorithm") == "none":
        java["ssl.endpoint.identification.algorithm"] = ""
    for name, (kind, target) in _PEM.items():
        if (path := native.get(f"{name}.location")) is not None:
            java[kind], java[target] = "PEM", _read(f"{name}.location", path)
        if (text := native.get(f"{name}.pem")) is not None:
            java[kind], java[target] = "PEM", text
    if "ssl.key.password" in native:
        java["ssl.key.password"] = native["ssl.key.password"]
    if native.get("enable.ssl.certificate.verification", "true").lower() == "false":
        raise CouldNotAuditError(
            "Spark's Kafka consumer cannot skip the verification of certificates: give the CA with ssl.ca.location"
        )
    return java


def _login(native: Mapping[str, str]) -> str:
    mechanism = native.get("sasl.mechanism", "").upper()
    module = _LOGIN_MODULES.get(mechanism)
    if module is None:
        raise CouldNotAuditError(
            f"sasl.mechanism {mechanism or '(none)'} with a user name cannot be translated for Spark: "
            f"use one of {', '.join(_LOGIN_MODULES)}, or give {JAVA_PREFIX}sasl.jaas.config"
        )
    user, password = _quoted(native["sasl.username"]), _quoted(native.get("sasl.password", ""))
    return f"{module} required username={user} password={password};"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise CouldNotAuditError(f"{name} {path} cannot be read as a PEM file: {error}") from error
