"""Visible records that carry TXB_HALF and match no half message: phantoms, unless something explains them.

The label is sound only below the earlier cut of the real topics. HALF is cut later, and a half message is in the log
before anything is delivered from it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter

from txbridge_audit.judge.facts import Facts
from txbridge_audit.judge.findings import HALF_GONE, HALF_GONE_ELSEWHERE, OTHER_NAMESPACE
from txbridge_audit.judge.violations import PHANTOM
from txbridge_audit.protocol.mentions import CopyMention

#: Half partition, half offset, and the id of the delivered messages.
HalfIdentity = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class OtherNamespaces:
    """Half messages of other namespaces of the cluster. A real topic may serve several, and its records name none."""

    halves: Collection[HalfIdentity] = frozenset()
    #: Half messages that their ENDs name, where HALF has lost some. Nobody else knows the id.
    ends: Collection[HalfIdentity] = frozenset()
    #: By partition number, the highest log start of HALF among those whose END was cut, too. A half message below it
    #: may have been removed without a trace.
    starts: Mapping[int, int] = field(default_factory=dict)


def labelled(strays: Iterable[CopyMention], facts: Facts, others: OtherNamespaces) -> Iterator[tuple[CopyMention, str]]:
    """The strays with their kinds, in the order of their places."""
    for copy in sorted(strays, key=attrgetter("visible_at")):
        if (kind := _label(copy, facts, others)) is not None:
            yield copy, kind


def _label(copy: CopyMention, facts: Facts, others: OtherNamespaces) -> str | None:
    """The kind of a stray. None for one whose half message is there, but below the offset from which HALF was read."""
    if copy.half is None:
        return PHANTOM.name
    about = facts.half(copy.partition)
    identity = copy.partition, copy.half, copy.id
    if about.log_start <= copy.half < about.half_start:
        return None
    if identity in others.halves:
        return OTHER_NAMESPACE.name
    if identity in others.ends or copy.half < about.log_start:
        return HALF_GONE.name
    if copy.half < others.starts.get(copy.partition, 0):
        return HALF_GONE_ELSEWHERE.name
    return PHANTOM.name
