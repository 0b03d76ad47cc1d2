"""When RocketMQ's properties say that a message is to be delivered."""

from __future__ import annotations

import re
from collections.abc import Mapping

from txbridge_rocketmq.codes import RequestError, Response

LEVEL, DELIVER_MS, DELAY_SEC, DELAY_MS = "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"
#: Properties that ask for a delay, in the order in which RocketMQ looks at them: the first that is there counts.
DELAYS = (LEVEL, DELAY_SEC, DELAY_MS, DELIVER_MS)
#: What RocketMQ's brokers have by default, from level 1 on (s). A higher level is the last.
_LEVELS: tuple[int, ...] = (1, 5, 10, 30, *range(60, 660, 60), 1_200, 1_800, 3_600, 7_200)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def time_of_delivery(properties: Mapping[str, str], now: int) -> int | None:
    """When it is to be delivered (ms since 1970); None: at once. Raises RequestError.

    `now`: the clock of the door, from which delays count as they count from that of a RocketMQ broker.
    """
    for name in DELAYS:
        text = properties.get(name)
        if text is None:
            continue
        if _NUMBER.fullmatch(text) is None:
            raise RequestError(Response.MESSAGE_ILLEGAL, f"{name} is no delay: {text[:40]!r}")
        number = int(text)
        if name == LEVEL:
            if not number:
                # Its client writes it for none.
                continue
            return now + 1_000 * _LEVELS[min(number, len(_LEVELS)) - 1]
        if name == DELIVER_MS:
            return number
        return now + number * (1_000 if name == DELAY_SEC else 1)
    return None


def refuse_in_batch(properties: Mapping[str, str]) -> None:
    """RequestError for a message of a batch that asks for a delay, as RocketMQ's own clients refuse it."""
    found = next((name for name in DELAYS if properties.get(name, "0") != "0"), None)
    if found is not None:
        raise RequestError(
            Response.MESSAGE_ILLEGAL, f"a message of a batch has no delay: send that with {found} by itself"
        )
