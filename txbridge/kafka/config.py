"""The user's librdkafka settings, by librdkafka's own names, turned into the settings of each of our Kafka clients.

One mapping serves all clients. A producer must not get a consumer's property, or the reverse, because librdkafka logs a
complaint for each. Settings have three ranks: the protocol's (`ours`; the user may not set them, or is overruled), the
user's, and our defaults, which rank lowest.

Bootstrap servers have one parser, because librdkafka, aiokafka and Kafka's Java client each read them differently.
librdkafka takes a protocol in front, and aiokafka does not. After a trailing comma, Faust tries 127.0.0.1:9092.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Producer

from txbridge.core.dedup import LONGEST_MESSAGE_TIMEOUT_MS
from txbridge.errors import UsageError

#: Kafka's usual port, which librdkafka and aiokafka add, too.
_DEFAULT_PORT = 9092
_HIGHEST_PORT = 65_535
#: A protocol of Kafka, a host name or an address (of IPv6 in brackets), and a port.
_SERVER = re.compile(
    r"(?:(?P<protocol>PLAINTEXT|SSL|SASL_PLAINTEXT|SASL_SSL)://)?"
    r"(?P<host>\[[0-9A-Fa-f:.]+(?:%\w+)?\]|[A-Za-z0-9._-]+)"
    r"(?::(?P<port>[0-9]{1,5}))?",
    re.IGNORECASE,
)


def canonical_servers(given: object, protocol: object = None) -> str:
    """The servers as host:port,host:port. `protocol` is the property security.protocol; None is plaintext.

    Spaces around commas and empty parts are dropped, and so is a protocol in front if it is the given one. Raises
    UsageError for everything else, because a client could read it in another way.
    """
    if "@" in str(given):
        # It is not repeated.
        raise UsageError("bootstrap.servers takes no password: give host:port, and sasl.username and sasl.password")
    servers = [part for part in (part.strip() for part in str(given).split(",")) if part]
    if not servers:
        raise UsageError("bootstrap.servers names no server: give host:port,host:port")
    return ",".join(_canonical(server, str(protocol or "plaintext")) for server in servers)


def _canonical(server: str, protocol: str) -> str:
    found = _SERVER.fullmatch(server)
    port = int(found["port"] or _DEFAULT_PORT) if found else 0
    if found is None or not 1 <= port <= _HIGHEST_PORT:
        raise UsageError(
            f"bootstrap.servers: {server!r} is not host:port. Separate servers by commas, and write an address of IPv6 "
            f"in brackets: [::1]:9092"
        )
    if (found["protocol"] or protocol).lower() != protocol.lower():
        raise UsageError(
            f"bootstrap.servers: {server!r} names another protocol than security.protocol, which is {protocol}. Give "
            f"security.protocol, and the server as {found['host']}:{port}"
        )
    return f"{found['host']}:{port}"


BOOTSTRAP_SERVERS = "bootstrap.servers"
#: Properties of the Java consumer in the audit's Spark, for which librdkafka has no name. In a file that worker and
#: audit share, only the audit reads them.
JAVA_PREFIX = "java."

_Client = TypeVar("_Client")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The properties of librdkafka 2.16 that only one kind of client has. librdkafka itself knows all other names.
_PRODUCER_ONLY = _names("""
    acks batch.num.messages batch.size compression.codec compression.level compression.type delivery.report.only.error
    delivery.timeout.ms enable.gapless.guarantee enable.idempotence linger.ms message.send.max.retries
    message.timeout.ms on_delivery partitioner produce.offset.report queue.buffering.backpressure.threshold
    queue.buffering.max.kbytes queue.buffering.max.messages queue.buffering.max.ms queuing.strategy
    request.required.acks request.timeout.ms retries sticky.partitioning.linger.ms transaction.timeout.ms
    transactional.id
""")
_CONSUMER_ONLY = _names("""
    auto.commit.enable auto.commit.interval.ms auto.offset.reset check.crcs consume.callback.max.messages
    coordinator.query.interval.ms enable.auto.commit enable.auto.offset.store enable.partition.eof
    fetch.error.backoff.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes fetch.queue.backoff.ms
    fetch.wait.max.ms group.id group.instance.id group.protocol group.protocol.type group.remote.assignor
    heartbeat.interval.ms isolation.level max.partition.fetch.bytes max.poll.interval.ms max.poll.records
    offset.store.method offset.store.path offset.store.sync.interval.ms on_commit partition.assignment.strategy
    queued.max.messages.kbytes queued.min.messages session.timeout.ms share.acknowledgement.mode
""")
#: Names of every client that people often set. They are suggested for a misspelt name, and each must be here that is
#: like another: else the other would be suggested.
_OFTEN_SET = _names("""
    broker.address.family client.dns.lookup client.id client.rack connections.max.idle.ms debug
    enable.ssl.certificate.verification message.max.bytes metadata.max.age.ms reconnect.backoff.max.ms
    reconnect.backoff.ms retry.backoff.max.ms retry.backoff.ms sasl.kerberos.keytab sasl.kerberos.principal
    sasl.kerberos.service.name sasl.mechanism sasl.oauthbearer.client.id sasl.oauthbearer.client.secret
    sasl.oauthbearer.config sasl.oauthbearer.extensions sasl.oauthbearer.method sasl.oauthbearer.scope
    sasl.oauthbearer.token.endpoint.url sasl.password sasl.username security.protocol
    socket.connection.setup.timeout.ms socket.keepalive.enable socket.timeout.ms ssl.ca.location ssl.ca.pem
    ssl.certificate.location ssl.certificate.pem ssl.cipher.suites ssl.crl.location
    ssl.endpoint.identification.algorithm ssl.key.location ssl.key.password ssl.key.pem ssl.keystore.location
    ssl.keystore.password statistics.interval.ms topic.metadata.refresh.interval.ms
""")

#: librdkafka's aliases, with the name used here. Of two spellings of one property in a mapping an arbitrary one would
#: win, and our own settings must overrule the user's under the same name.
_ALIASES = {
    "metadata.broker.list": BOOTSTRAP_SERVERS,
    "max.in.flight": "max.in.flight.requests.per.connection",
    "sasl.mechanisms": "sasl.mechanism",
    "sasl.oauthbearer.client.credentials.client.id": "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.credentials.client.secret": "sasl.oauthbearer.client.secret",
    "queue.buffering.max.ms": "linger.ms",
    "message.send.max.retries": "retries",
    "compression.codec": "compression.type",
    "request.required.acks": "acks",
    "delivery.timeout.ms": "message.timeout.ms",
    "fetch.message.max.bytes": "max.partition.fetch.bytes",
    "auto.commit.enable": "enable.auto.commit",
    "dr_cb": "on_delivery",
}

_OURS_TO_COMMIT = "txbridge itself decides what counts as read"
#: Refused names and why the protocol needs our own value. A reason completes the sentence "X cannot be set: ...".
_REFUSED = {
    "transactional.id": "it is the fence of a half partition and derives from the topics",
    "transaction.timeout.ms": "it is the worker's option commit_timeout",
    "acks": "a half message counts as prepared only when all in-sync replicas have it (acks=all)",
    "enable.idempotence": "without it a retry could store a half message or a decision twice",
    "enable.gapless.guarantee": "one failed message would end the producer for all others",
    "partitioner": "keys must land where Kafka's Java producer puts them (murmur2_random)",
    "partitioner_cb": "keys must land where Kafka's Java producer puts them (murmur2_random)",
    "queuing.strategy": "decisions must keep their order",
    "delivery.report.only.error": "txbridge waits for the reports of success",
    "on_delivery": "the result of each send has the outcome",
    "isolation.level": "which records may be seen differs per internal topic and is part of the protocol",
    "group.id": "the group that answers checks derives from the producer group, the worker's is the option app_id",
    "group.instance.id": "clients that share these settings would fence each other",
    "auto.offset.reset": "a missing position means lost records and must be reported, not skipped",
    "enable.auto.commit": _OURS_TO_COMMIT,
    "enable.auto.offset.store": _OURS_TO_COMMIT,
    "auto.commit.interval.ms": _OURS_TO_COMMIT,
    "offset.store.method": _OURS_TO_COMMIT,
    "on_commit": _OURS_TO_COMMIT,
    "enable.partition.eof": "a take-over recognises the end of a log by it",
    "enabled_events": "it would turn off the callbacks that txbridge lives on",
    "allow.auto.create.topics": "a topic created by accident would have the broker's defaults, not the protocol's",
    "default.topic.config": "give the properties themselves, without this wrapper",
}

#: In every client. Topics are never auto-created; librdkafka's default for producers is to create a missing topic.
_COMMON: dict[str, Any] = {"allow.auto.create.topics": False}
#: In every producer: records are stored once, in order, by all in-sync replicas, in the Java producer's partition.
_PRODUCER: dict[str, Any] = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}

_DEFAULT_CLIENT_ID = "txbridge"
#: RocketMQ's sendMsgTimeout: an application that waits for its half message learns within 3 s that it failed.
HALF_MESSAGE_TIMEOUT_MS = 3_000
#: A decision gets more time: long enough for a restart of a broker (10 to 20 s), short enough for a close() that waits
#: for it. If the decision is given up, the answer to a check replaces it.
END_MESSAGE_TIMEOUT_MS = 30_000
#: Kafka's smallest session is 6 s (group.min.session.timeout.ms) and its default 45 s. Until the session of a dead
#: process ends, checks go to it and count (promise P6). Heartbeats come from librdkafka's own thread, so 10 s is never
#: too short for a busy process.
CHECK_SESSION_TIMEOUT_MS = 10_000
#: By librdkafka's default of five minutes, a consumer of checks gets none for that long after somebody has deleted the
#: check topic and created it again. It is one small request.
CHECK_REFRESH_MS = 30_000
#: librdkafka's default batch.size. The broker refuses a batch above the topic's max.message.bytes, however small its
#: records are.
BATCH_BYTES = 1_000_000


def canonical_name(name: str) -> str:
    """The one name of a property for which librdkafka has several."""
    return _ALIASES.get(name, name)


def user_config(user: Mapping[str, Any]) -> dict[str, Any]:
    """Check the user's settings, and return them under canonical names.

    Raises UsageError for missing or unclear `bootstrap.servers`, and for a property that is unknown, refused or given
    twice. The text has the reason, and the nearest name of an unknown property.
    """
    config: dict[str, Any] = {}
    if not isinstance(user, Mapping):
        raise UsageError(f"Kafka's settings are a dict, {{{BOOTSTRAP_SERVERS!r}: ...}}, not {type(user).__name__}")
    for given, value in user.items():
        if not isinstance(given, str):
            raise UsageError(f"Kafka property names are text, not {given!r}")
        name = canonical_name(given)
        if name in _REFUSED:
            raise UsageError(f"Kafka property {given!r} cannot be set: {_REFUSED[name]}")
        if name in config:
            raise UsageError(f"Kafka property {name!r} is given twice (once as {given!r} or another alias)")
        if name not in _KNOWN:
            _require_known(given)
        config[name] = value
    if not config.get(BOOTSTRAP_SERVERS):
        raise UsageError(f"Kafka property {BOOTSTRAP_SERVERS!r} is missing: give it as host:port,host:port")
    config[BOOTSTRAP_SERVERS] = canonical_servers(config[BOOTSTRAP_SERVERS], config.get("security.protocol"))
    return config


def producer_config(
    user: Mapping[str, Any], ours: Mapping[str, Any] | None = None, *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings of an idempotent producer: `defaults` lose to `user`, `user` to `ours`. Errors as `user_config`."""
    return _derive(user, _CONSUMER_ONLY, {**_PRODUCER, **(ours or {})}, defaults)


def consumer_config(
    user: Mapping[str, Any], ours: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Settings of a consumer; `ours` has at least group.id. librdkafka commits and stores no offset by itself."""
    ours = {"enable.auto.commit": False, "enable.auto.offset.store": False, **ours}
    return _derive(user, _PRODUCER_ONLY, ours, defaults)


def admin_config(user: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an admin client: only properties that every client has."""
    return _derive(user, _PRODUCER_ONLY | _CONSUMER_ONLY, {}, None)


def half_producer_config(user: Mapping[str, Any], *, max_message_bytes: int, linger_ms: float = 0) -> dict[str, Any]:
    """Settings of a producer of half messages; `max_message_bytes` is max.message.bytes of the half topic.

    There is no linger where the application waits for each half message. `message.timeout.ms` is 3 s, as RocketMQ's
    send time-out. The user may set both, `message.timeout.ms` to at most LONGEST_MESSAGE_TIMEOUT_MS. Raises UsageError.
    """
    config = producer_config(user, defaults={"linger.ms": linger_ms, "message.timeout.ms": HALF_MESSAGE_TIMEOUT_MS})
    try:
        timeout = int(config["message.timeout.ms"])
    except (TypeError, ValueError):
        # No number: librdkafka itself reports that.
        timeout = HALF_MESSAGE_TIMEOUT_MS
    if not 1 <= timeout <= LONGEST_MESSAGE_TIMEOUT_MS:
        raise UsageError(
            f"Kafka property 'message.timeout.ms' cannot be {timeout}: from 1 to {LONGEST_MESSAGE_TIMEOUT_MS}. A half "
            f"message that is sent again later could become a second transaction"
        )
    return _sized(config, max_message_bytes)


def end_producer_config(user: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of the producer of END commands.

    There is no linger, because the client has batched the commands already. The time-out is ours: the user's
    `message.timeout.ms` is meant for the half messages that an application waits for, and so is the compression: END
    is not compressed, because a worker's Faust cannot unpack each, and would be late.
    """
    ours = {"message.timeout.ms": END_MESSAGE_TIMEOUT_MS, "compression.type": "none"}
    return producer_config(user, ours, defaults={"linger.ms": 0})


def transactional_producer_config(
    user: Mapping[str, Any], *, transactional_id: str, commit_timeout_ms: int, max_message_bytes: int
) -> dict[str, Any]:
    """Settings of a worker's transactional producer; `max_message_bytes` is the largest of all topics it writes.

    Its records are given up after half of `commit_timeout_ms`, so that the other half is left to commit or abort.
    Retries start after 10 ms instead of 100: the coordinator answers CONCURRENT_TRANSACTIONS while it writes the
    markers of the previous transaction.
    """
    ours = {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": commit_timeout_ms,
        "message.timeout.ms": commit_timeout_ms // 2,
    }
    return _sized(producer_config(user, ours, defaults={"retry.backoff.ms": 10}), max_message_bytes)


def reader_config(user: Mapping[str, Any], *, group: str, read_committed: bool) -> dict[str, Any]:
    """Settings of a reader with assigned partitions: no group membership, and an event at the end of a log.

    A position that the log does not have (any more) is an error; the reader never jumps. `group` is only a name here,
    but librdkafka needs one, and the broker may require the right to describe it.
    """
    ours = {
        "group.id": group,
        "isolation.level": "read_committed" if read_committed else "read_uncommitted",
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }
    return consumer_config(user, ours)


def check_consumer_config(user: Mapping[str, Any], *, group: str) -> dict[str, Any]:
    """Settings of the consumer of a producer group's checks; `group` is `Names.check(producer group)`."""
    ours = {"group.id": group, "isolation.level": "read_committed", "auto.offset.reset": "earliest"}
    # Checks end a fetch at once. Twice librdkafka's default: an idle client and its broker have half as much to do.
    ours["fetch.wait.max.ms"] = "1000"
    # With group.protocol=consumer (KIP-848) the broker sets the session time-out, and librdkafka refuses this property.
    next_generation = str(user.get("group.protocol", "")).lower() == "consumer"
    session = {} if next_generation else {"session.timeout.ms": CHECK_SESSION_TIMEOUT_MS}
    return consumer_config(user, ours, defaults={"topic.metadata.refresh.interval.ms": CHECK_REFRESH_MS, **session})


def create(client: Callable[[dict[str, Any]], _Client], config: Mapping[str, Any]) -> _Client:
    """Construct a client of confluent-kafka. Raises UsageError for settings that librdkafka refuses.

    The names were checked when the settings were derived. librdkafka checks the values, such as a range or a file name.
    """
    try:
        return client({"logger": librdkafka_logger(), **config})
    except KafkaException as error:
        reason = error.args[0].str().strip()
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise UsageError(f"Kafka settings refused: {reason}")


def nearest(name: str, known: frozenset[str] | set[str]) -> str:
    """`; did you mean 'x'?` for the known name most like this one, or nothing."""
    import difflib  # noqa: PLC0415  only for a mistake

    match = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.7)
    return f"; did you mean {match[0]!r}?" if match else ""


_KNOWN = _PRODUCER_ONLY | _CONSUMER_ONLY | _OFTEN_SET | {BOOTSTRAP_SERVERS, *_ALIASES}


def _derive(
    user: Mapping[str, Any], foreign: frozenset[str], ours: Mapping[str, Any], defaults: Mapping[str, Any] | None
) -> dict[str, Any]:
    mine = {name: value for name, value in user_config(user).items() if name not in foreign}
    return {"client.id": _DEFAULT_CLIENT_ID, **(defaults or {}), **mine, **_COMMON, **ours}


def _sized(config: dict[str, Any], max_message_bytes: int) -> dict[str, Any]:
    """Let the largest message through, and keep a batch of small ones below what the topic accepts.

    librdkafka itself refuses messages above `message.max.bytes` (1,000,000 by default). The broker refuses whole
    batches above the topic's max.message.bytes, so a larger value of the user would not help.
    """
    batch = min(int(config.get("batch.size", BATCH_BYTES)), max_message_bytes)
    return {**config, "message.max.bytes": max_message_bytes, "batch.size": batch}


def _require_known(name: str) -> None:
    """Refuse a property that librdkafka does not know. A producer that is never used is made in 0.3 ms."""
    try:
        Producer({name: None, "log_level": 0})
    except (TypeError, ValueError):
        return  # the name is known, and only the value None is refused
    except KafkaException as error:
        if "No such configuration property" in error.args[0].str():
            raise UsageError(
                f"unknown Kafka property {name!r}{nearest(name, _KNOWN - set(_REFUSED))} "
                "(librdkafka's own names are expected, not Java's)"
            ) from None


def librdkafka_logger(*, is_shown: bool = False) -> logging.Logger:
    """The logger of librdkafka, off by default: txbridge reports the lines that matter as events of its own."""
    logger = logging.getLogger("txbridge.librdkafka.shown" if is_shown else "txbridge.librdkafka")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.DEBUG if is_shown else logging.CRITICAL)
        if is_shown and not logger.hasHandlers():
            # librdkafka itself would print the secrets in its lines.
            logger.addHandler(logging.StreamHandler())
    return logger
