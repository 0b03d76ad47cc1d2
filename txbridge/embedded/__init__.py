"""A real Apache Kafka on this machine, with nothing but Java and this package: for tests, demos and trying out."""

from txbridge.errors import missing_extra

if error := missing_extra(__name__, "embedded", "rich"):
    raise error

from txbridge.embedded.jars import KAFKA_VERSION, KAFKA_VERSIONS, BrokenCacheError
from txbridge.embedded.java import KafkaStartError
from txbridge.embedded.node import Node
from txbridge.embedded.server import EmbeddedKafka

__all__ = ["KAFKA_VERSION", "KAFKA_VERSIONS", "BrokenCacheError", "EmbeddedKafka", "KafkaStartError", "Node"]
