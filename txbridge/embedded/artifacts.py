"""The jars of Apache Kafka, locked by size and SHA-256, so that a fetch gives these bytes or fails.

`locks/kafka-VERSION.lock` is what Maven resolves for `org.apache.kafka:kafka_2.13:VERSION` together with
`org.apache.logging.log4j:log4j-slf4j-impl:2.25.4`. The second is not in Kafka's pom: Kafka logs through slf4j 1.7 and
prints nothing at all without a binding. For another version of Kafka, let Maven resolve those two once, with what they
need at run time, and write every jar down in a new file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from txbridge.errors import UsageError

#: The releases that can be chosen, and the version of each that is locked.
KAFKA_VERSIONS = {"3.9": "3.9.2", "4.0": "4.0.2", "4.1": "4.1.2", "4.2": "4.2.2", "4.3": "4.3.1"}
#: The default version.
KAFKA_VERSION = KAFKA_VERSIONS["4.3"]

_LOCKS = Path(__file__).with_name("locks")


@dataclass(frozen=True, slots=True)
class Artifact:
    """One jar of the lock."""

    organisation: str
    name: str
    version: str
    #: Bytes.
    size: int
    #: Lower-case hexadecimal.
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Its path in a Maven repository."""
        return f"{self.organisation.replace('.', '/')}/{self.name}/{self.version}/{self.file_name}"


def locked_version(release: str) -> str:
    """The locked version for "4.3" or "4.3.1"; UsageError if there is none."""
    version = KAFKA_VERSIONS.get(release, release)
    if version not in KAFKA_VERSIONS.values():
        known = ", ".join(f"{name} ({full})" for name, full in KAFKA_VERSIONS.items())
        raise UsageError(f"Kafka {release} is not among the versions that can be started: {known}")
    return version


@cache
def kafka_jars(version: str) -> tuple[Artifact, ...]:
    """Every jar of this version, in the order of the class path.

    The order is part of the contract: the JVM refuses a class-data archive that was made with another one.
    """
    return tuple(parse_lock((_LOCKS / f"kafka-{version}.lock").read_text()))


def parse_lock(text: str) -> Iterator[Artifact]:
    """One line per jar: name, version, size in bytes, SHA-256; the lines with a colon name the organisation."""
    organisation = ""
    for line in text.split("\n"):
        match line.split():
            case [heading]:
                organisation = heading.removesuffix(":")
            case [name, version, size, sha256]:
                yield Artifact(organisation, name, version, int(size), sha256)
