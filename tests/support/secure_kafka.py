"""A real Kafka with TLS, SASL/SCRAM and ACLs, and the rights that `txbridge topics acls` prints.

Users of the listener SECURE have only the rights that were granted. The broker itself and the tests' own harness use
the other listener, as a superuser.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any
from unittest import mock

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from typer.testing import CliRunner

from tests.support.harness import quiet
from txbridge.cli.app import app
from txbridge.embedded import EmbeddedKafka, config
from txbridge.embedded.java import find_java
from txbridge.embedded.ports import HOST, free_port
from txbridge.kafka.acl import CLUSTER, Pattern, ResourceKind, Right, Role

#: Options of kafka-acls.sh that are followed by a name.
_RESOURCES = ("topic", "group", "transactional-id")
#: confluent-kafka's names of the resources.
_KINDS = {
    kind: ResourceType.BROKER if kind is ResourceKind.CLUSTER else ResourceType[kind.value] for kind in ResourceKind
}


@dataclass(frozen=True)
class SecureKafka:
    """A running Kafka. `plain` is the superuser's address, `secure` that of all others."""

    broker: EmbeddedKafka
    secure: str
    ca: Path

    @property
    def plain(self) -> str:
        return self.broker.bootstrap_servers

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(quiet(self.plain))

    def user(self, name: str) -> User:
        """A new user without any right."""
        found = User(self, f"{name}-{secrets.token_hex(3)}", secrets.token_urlsafe(24))
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        change = UserScramCredentialUpsertion(found.name, credential, found.password.encode())
        for answer in self.admin.alter_user_scram_credentials([change]).values():
            answer.result(120)
        return found


@dataclass(frozen=True)
class User:
    """A user who connects with TLS and SCRAM."""

    kafka: SecureKafka
    name: str
    password: str

    @property
    def settings(self) -> dict[str, str]:
        """librdkafka's settings of the user, without bootstrap.servers."""
        return {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self.kafka.ca),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": self.name,
            "sasl.password": self.password,
        }

    def grant(self, *rights: Right) -> None:
        bindings = [AclBinding(*self._entry(right, operation)) for right in rights for operation in right.operations]
        for answer in self.kafka.admin.create_acls(bindings).values():
            answer.result(120)

    def revoke(self, right: Right, operation: str) -> None:
        """Remove one operation from a right."""
        for answer in self.kafka.admin.delete_acls([AclBindingFilter(*self._entry(right, operation))]).values():
            assert answer.result(120), f"{self.name} did not have {operation} on {right.name}"

    def _entry(self, right: Right, operation: str) -> tuple[Any, ...]:
        """The arguments of an ACL."""
        pattern, user = ResourcePatternType[right.pattern.value], f"User:{self.name}"
        return _KINDS[right.kind], right.name, pattern, user, "*", AclOperation[operation], AclPermissionType.ALLOW


def print_acls(role: str, namespace: str, group: str, real_topic: str, *more: str) -> list[str]:
    """The lines that `txbridge topics acls` prints for a role."""
    words = ["--role", role, "--principal", "User:somebody", "--namespace", namespace, "--bootstrap-servers", "kafka:1"]
    words += ["--group", group] if Role(role).has_group else []
    words += ["--real-topic", real_topic] if Role(role).has_real_topic else []
    done = CliRunner().invoke(app, ["topics", "acls", *words, *more], catch_exceptions=False)
    assert done.exit_code == 0, done.stderr
    return done.stdout.splitlines()


def printed(role: str, namespace: str, group: str, real_topic: str) -> list[Right]:
    """The same lines as rights."""
    parser = argparse.ArgumentParser()
    for option in ("--bootstrap-server", "--allow-principal", *(f"--{kind}" for kind in _RESOURCES)):
        parser.add_argument(option)
    parser.add_argument("--operation", action="append")
    parser.add_argument("--resource-pattern-type", default="literal")
    parser.add_argument("--add", action="store_true", required=True)
    parser.add_argument("--cluster", action="store_const", const=CLUSTER)
    found = []
    for line in print_acls(role, namespace, group, real_topic):
        command, *words = shlex.split(line)
        given = vars(parser.parse_args(words))
        assert (command, given["allow_principal"]) == ("kafka-acls.sh", "User:somebody")
        [(kind, name)] = [(kind, name) for kind in ResourceKind if (name := given[kind.value.lower()])]
        operations = tuple(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", one).upper() for one in given["operation"])
        found.append(Right(kind, name, Pattern[given["resource_pattern_type"].upper()], operations))
    return found


@contextmanager
def secure_kafka(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Iterator[SecureKafka]:
    """Start a secure Kafka, with more settings of the broker. Its keys are made in `folder`."""
    store, ca, password = _keys(folder)
    port, controller, secure = _ports()
    settings = {
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller},SECURE://{HOST}:{secure}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port},SECURE://{HOST}:{secure}",
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
        "listener.name.secure.sasl.enabled.mechanisms": "SCRAM-SHA-512",
        "listener.name.secure.scram-sha-512.sasl.jaas.config": (
            "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        ),
        "listener.name.secure.ssl.keystore.type": "PKCS12",
        "listener.name.secure.ssl.keystore.location": str(store),
        "listener.name.secure.ssl.keystore.password": password,
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # Users of the other listener: the broker, its controller, and the harness.
        "super.users": "User:ANONYMOUS",
        **more,
    }
    # Users cannot normally set listeners, because the ports are chosen at the start. Here all ports are known before.
    with mock.patch.dict(config.RESERVED, clear=True):
        broker = EmbeddedKafka(port=port, config=settings)
    with broker:
        yield SecureKafka(broker, f"{HOST}:{secure}", ca)


def _ports() -> set[int]:
    ports: set[int] = set()
    while len(ports) < 3:
        ports.add(free_port())
    return ports


def _keys(folder: Path) -> tuple[Path, Path, str]:
    """A key with its certificate for the loopback address, and the certificate alone. keytool comes with every Java."""
    store, ca, password = folder / "broker.p12", folder / "ca.pem", secrets.token_hex(12)
    keytool = find_java().executable.parent / "keytool"
    common = ["-keystore", store, "-storepass", password, "-alias", "broker"]
    make = ["-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-dname", "CN=txbridge test", "-validity", "2"]
    subprocess.run([keytool, *make, "-ext", f"SAN=IP:{HOST}", *common], check=True, capture_output=True)
    export = subprocess.run([keytool, "-exportcert", "-rfc", *common], check=True, capture_output=True)
    ca.write_bytes(export.stdout)
    return store, ca, password
