"""The rights that each role needs, as Kafka's ACLs.

docs/security.md shows this table, `txbridge topics acls` prints it, and a test grants no more than that. Only necessary
grants are listed: WRITE and READ include DESCRIBE on topics, groups and transactional ids.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from txbridge.core.names import READER_GROUP, SYSTEM_GROUP, Names


class Role(enum.Enum):
    """The roles of programs and people that connect to Kafka."""

    #: An application with a TransactionProducer; its check topic was made by `txbridge topics apply --group`.
    CLIENT = "client"
    #: `txbridge answer-checks`.
    ANSWERER = "answerer"
    #: `txbridge relay`.
    RELAY = "relay"
    #: `txbridge relay` of an outbox into which services store and forward; it also needs the rights of the relay.
    FORWARDER = "forwarder"
    WORKER = "worker"
    #: A person who uses pending, resolve and resume.
    OPERATOR = "operator"
    #: `txbridge audit`.
    AUDIT = "audit"
    #: `txbridge audit --follow`; it also needs the rights of the audit.
    FOLLOWER = "follower"
    #: `txbridge topics`.
    ADMIN = "admin"
    #: `txbridge doctor`; it also needs the rights of the role that it examines.
    DOCTOR = "doctor"

    @property
    def has_group(self) -> bool:
        """Whether it has rights on the names of producer groups."""
        return self in {Role.CLIENT, Role.ANSWERER}

    @property
    def has_real_topic(self) -> bool:
        """Whether it has rights on real topics."""
        return self in {Role.WORKER, Role.AUDIT, Role.RELAY}


class ResourceKind(enum.Enum):
    """Kinds of resources that rights are granted on; the names of Kafka's ResourceType."""

    TOPIC = "TOPIC"
    GROUP = "GROUP"
    TRANSACTIONAL_ID = "TRANSACTIONAL_ID"
    CLUSTER = "CLUSTER"


class Pattern(enum.Enum):
    """Ways to match a resource name; the names of Kafka's ResourcePatternType."""

    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


@dataclass(frozen=True, slots=True)
class Right:
    """Operations (Kafka's AclOperation) on one resource, or on all whose names begin with `name`."""

    kind: ResourceKind
    name: str
    pattern: Pattern
    operations: tuple[str, ...]

    def __str__(self) -> str:
        what = f"{self.kind.value.lower().replace('_', ' ')} {self.name}"
        return f"{', '.join(self.operations)} on {what}{'*' if self.pattern is Pattern.PREFIXED else ''}"

    def as_options(self) -> list[str]:
        """The options of kafka-acls.sh that name the operations and the resource."""
        resource = f"--{self.kind.value.lower().replace('_', '-')}"
        return [
            *(word for one in self.operations for word in ("--operation", one.title().replace("_", ""))),
            *((resource,) if self.kind is ResourceKind.CLUSTER else (resource, self.name)),
            # Kafka's default is literal.
            *(("--resource-pattern-type", "prefixed") if self.pattern is Pattern.PREFIXED else ()),
        ]

    def as_record(self) -> dict[str, str | list[str]]:
        """The right by Kafka's names."""
        return {
            "resource_type": self.kind.value,
            "resource_name": self.name,
            "pattern_type": self.pattern.value,
            "operations": [*self.operations],
        }


#: Kafka's only name for the cluster resource.
CLUSTER = "kafka-cluster"


def topic(name: str, *operations: str, pattern: Pattern = Pattern.LITERAL) -> Right:
    return Right(ResourceKind.TOPIC, name, pattern, operations)


def list_rights(
    role: Role, names: Names, groups: Sequence[str], real_topics: Sequence[str], *, app_id: str = ""
) -> list[Right]:
    """Return the rights of a role on several producer groups and real topics, each right once."""
    return list(
        dict.fromkeys(
            right
            for group in groups or ("",)
            for real_topic in real_topics or ("",)
            for right in rights(role, names, app_id=app_id, group=group, real_topic=real_topic)
        )
    )


def rights(role: Role, names: Names, *, app_id: str = "", group: str = "", real_topic: str = "") -> list[Right]:
    """Return the rights that a role needs in a namespace.

    `group` is the client's producer group. `real_topic` is one of the real topics; each needs the same rights. `app_id`
    is the workers' group if it is not the default one.
    """
    app_id = app_id or names.worker_group
    checks = names.check("")
    fences = Right(ResourceKind.TRANSACTIONAL_ID, f"{names.half}@{SYSTEM_GROUP}/", Pattern.PREFIXED, ("WRITE",))
    # librdkafka looks up the coordinator of this group for every reader. The audit's reads on without it.
    reader = Right(ResourceKind.GROUP, READER_GROUP, Pattern.LITERAL, ("DESCRIBE",))
    answering = (
        topic(names.end, "WRITE", "DESCRIBE_CONFIGS"),
        topic(names.check(group), "READ", "DESCRIBE_CONFIGS"),
        Right(ResourceKind.GROUP, names.check(group), Pattern.LITERAL, ("READ",)),
    )
    match role:
        case Role.CLIENT:
            return [topic(names.half, "WRITE", "DESCRIBE_CONFIGS"), *answering]
        case Role.RELAY:
            return [
                topic(names.outbox, "READ", "WRITE", "DESCRIBE_CONFIGS"),
                topic(real_topic, "WRITE", "DESCRIBE_CONFIGS"),
                reader,
                Right(ResourceKind.TRANSACTIONAL_ID, names.relay_transactional_id(""), Pattern.PREFIXED, ("WRITE",)),
            ]
        case Role.FORWARDER:
            return [
                topic(names.half, "DESCRIBE", "DESCRIBE_CONFIGS"),
                topic(names.end, "WRITE", "DESCRIBE_CONFIGS"),
                topic(names.offset, "READ"),
            ]
        case Role.ANSWERER:
            return [topic(names.half, "DESCRIBE", "DESCRIBE_CONFIGS"), *answering]
        case Role.WORKER:
            return [
                topic(names.half, "READ", "DESCRIBE_CONFIGS"),
                topic(names.end, "READ", "DESCRIBE_CONFIGS"),
                topic(names.op, "READ", "WRITE", "DESCRIBE_CONFIGS"),
                topic(names.offset, "READ", "WRITE", "DESCRIBE_CONFIGS"),
                topic(names.discard, "WRITE", "DESCRIBE_CONFIGS"),
                topic(checks, "WRITE", pattern=Pattern.PREFIXED),
                topic(real_topic, "WRITE"),
                Right(ResourceKind.GROUP, app_id, Pattern.LITERAL, ("READ",)),
                Right(ResourceKind.GROUP, checks, Pattern.PREFIXED, ("DESCRIBE",)),
                reader,
                fences,
            ]
        case Role.OPERATOR:
            return [
                reader,
                topic(names.half, "READ", "DESCRIBE_CONFIGS"),
                topic(names.end, "READ", "WRITE", "DESCRIBE_CONFIGS"),
                topic(names.op, "READ", "DESCRIBE_CONFIGS"),
                topic(names.offset, "READ", "DESCRIBE_CONFIGS"),
            ]
        case Role.AUDIT:
            return [
                *(topic(name, "READ") for name in (*names.internal, names.outbox)),
                topic(checks, "READ", pattern=Pattern.PREFIXED),
                topic(real_topic, "READ", "DESCRIBE_CONFIGS"),
            ]
        case Role.FOLLOWER:
            return [
                topic(names.violations, "READ", "WRITE"),
                # The rest of the name is the ledger's own id.
                Right(ResourceKind.TRANSACTIONAL_ID, f"{names.violations}-", Pattern.PREFIXED, ("WRITE",)),
            ]
        case Role.ADMIN:
            create = ("CREATE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS")
            return [
                *(topic(name, *create) for name in (*names.internal, names.outbox)),
                topic(checks, *create, pattern=Pattern.PREFIXED),
            ]
        case Role.DOCTOR:
            return [
                Right(ResourceKind.CLUSTER, CLUSTER, Pattern.LITERAL, ("DESCRIBE", "DESCRIBE_CONFIGS")),
                *(topic(name, "READ", "DESCRIBE_CONFIGS") for name in names.internal[:-1]),
                *(topic(name, "DESCRIBE", "DESCRIBE_CONFIGS") for name in (names.discard, names.outbox)),
                topic(checks, "DESCRIBE", "DESCRIBE_CONFIGS", pattern=Pattern.PREFIXED),
                topic("__transaction_state", "DESCRIBE"),
                topic("__consumer_offsets", "DESCRIBE"),
                Right(ResourceKind.GROUP, app_id, Pattern.LITERAL, ("DESCRIBE",)),
                reader,
                Right(ResourceKind.GROUP, checks, Pattern.PREFIXED, ("DESCRIBE",)),
            ]
