"""Lines of the Kafka controller's log about the session of the former broker."""

from __future__ import annotations

import pytest

from txbridge.embedded.fencing import is_fenced

REGISTERED = "Replayed initial RegisterBrokerRecord for broker 1: RegisterBrokerRecord(brokerId=1, fenced=true, y)\n"
CAUGHT_UP = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=-1, inControlledShutdown=0)\n"
SERVING = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=0, inControlledShutdown=0)\n"
FENCED = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=1, inControlledShutdown=0)\n"
ACTIVE = "Performing controller activation. (org.apache.kafka.controller.QuorumController)\n"
WRITTEN = "Read-write operation maybeFenceStaleBroker(12) will be completed when the log reaches offset 17.\n"
LOOKED = "Processed maybeFenceStaleBroker(1) in 271 us (org.apache.kafka.controller.QuorumController)\n"
COMMITTED = "Processed maybeFenceStaleBroker(12) in 31415 us (org.apache.kafka.controller.QuorumController)\n"


@pytest.mark.parametrize(
    ("log", "fenced"),
    [
        ("", False),
        (REGISTERED + CAUGHT_UP + SERVING, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE, False),
        (REGISTERED + CAUGHT_UP + ACTIVE, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED + FENCED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED + FENCED + WRITTEN, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + FENCED + WRITTEN + LOOKED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + LOOKED + FENCED + WRITTEN + LOOKED + COMMITTED, True),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED, False),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED + ACTIVE, True),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED + REGISTERED + CAUGHT_UP + SERVING + ACTIVE, False),
        (REGISTERED + ACTIVE, True),
        (REGISTERED.replace("fenced=true", "fenced=false") + ACTIVE, False),
        (ACTIVE, True),
    ],
    ids=[
        "nothing yet", "loading", "in charge, session open", "session open, killed early", "looked, session open",
        "decided", "not on disk", "not on disk, an earlier look ended", "on disk", "not in charge",
        "fenced before", "came back since", "never served", "from a snapshot", "never registered",
    ],
)  # fmt: skip
def test_fenced_once_it_is_on_disk(log: str, fenced: bool) -> None:
    assert is_fenced(log) is fenced
