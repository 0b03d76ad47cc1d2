"""What the log of Kafka's controller says about the session of the former broker."""

from __future__ import annotations

import pytest

from txbridge.embedded.fencing import is_fenced

REGISTERED = "Replayed initial RegisterBrokerRecord for broker 1: RegisterBrokerRecord(brokerId=1, fenced=true, y)\n"
CAUGHT_UP = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=-1, inControlledShutdown=0)\n"
SERVING = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=0, inControlledShutdown=0)\n"
FENCED = "BrokerRegistrationChangeRecord(brokerId=1, brokerEpoch=11, fenced=1, inControlledShutdown=0)\n"
ACTIVE = "Performing controller activation. (org.apache.kafka.controller.QuorumController)\n"
COMMITTED = "Processed maybeFenceStaleBroker in 31415 us (org.apache.kafka.controller.QuorumController)\n"


@pytest.mark.parametrize(
    ("log", "fenced"),
    [
        ("", False),
        (REGISTERED + CAUGHT_UP + SERVING, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + COMMITTED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + COMMITTED + FENCED, False),
        (REGISTERED + CAUGHT_UP + SERVING + ACTIVE + COMMITTED + FENCED + COMMITTED, True),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED, False),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED + ACTIVE, True),
        (REGISTERED + CAUGHT_UP + SERVING + FENCED + REGISTERED + SERVING + ACTIVE, False),
        (REGISTERED + ACTIVE, True),
        (REGISTERED.replace("fenced=true", "fenced=false") + ACTIVE, False),
        (ACTIVE, True),
    ],
    ids=[
        "nothing yet", "loading", "in charge, session open", "looked, session open", "not on disk", "on disk",
        "not in charge", "fenced before", "came back since", "never served", "from a snapshot", "never registered",
    ],
)  # fmt: skip
def test_fenced_once_it_is_on_disk(log: str, fenced: bool) -> None:
    assert is_fenced(log) is fenced
