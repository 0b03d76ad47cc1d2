"""A real Kafka with TLS, SASL/SCRAM and ACLs, and the rights that `txbridge topics acls` prints.

Users of the listener SECURE have only the rights that were granted. The broker itself and the tests' own harness use
the other listener, as a superuser.
"""

from __future__ import annotations

import argparse
import re
import secrets
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from typer.testing import CliRunner

from tests.support.harness import quiet
from txbridge.cli.app import app
from txbridge.embedded import EmbeddedKafka
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

    @property
    def secure(self) -> str:
        return self.broker.secure.bootstrap_servers

    @property
    def plain(self) -> str:
        return self.broker.bootstrap_servers

    @cached_property
    def admin(self) -> AdminClient:
        return AdminClient(quiet(self.plain))

    def user(self, name: str) -> User:
        """A new user without any right."""
        chosen = f"{name}-{secrets.token_hex(3)}"
        settings = self.broker.secure.add_user(chosen)
        del settings["bootstrap.servers"]
        return User(self, chosen, settings)


@dataclass(frozen=True)
class User:
    """A user who connects with TLS, by a password unless the broker wants certificates."""

    kafka: SecureKafka
    name: str
    #: librdkafka's, without bootstrap.servers.
    settings: dict[str, str]

    @property
    def password(self) -> str:
        return self.settings["sasl.password"]

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
def secure_kafka(more: Mapping[str, str] = MappingProxyType({})) -> Iterator[SecureKafka]:
    """Start a secure Kafka, with more settings of the broker."""
    with EmbeddedKafka(secure_port=0, config=more) as broker:
        yield SecureKafka(broker)
