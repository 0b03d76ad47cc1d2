"""Times of delivery, from RocketMQ's properties."""

from __future__ import annotations

import re
from collections.abc import Mapping

from txbridge_rocketmq.codes import RequestError, ResponseCode

LEVEL, DELIVER_MS, DELAY_SEC, DELAY_MS = "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS"
#: Properties that ask for a delay, in the order in which RocketMQ reads them. The first that is there counts.
DELAYS = (LEVEL, DELAY_SEC, DELAY_MS, DELIVER_MS)
#: Default delays of RocketMQ's brokers, from level 1 on (s). A higher level means the last one.
_LEVELS: tuple[int, ...] = (1, 5, 10, 30, *range(60, 660, 60), 1_200, 1_800, 3_600, 7_200)
_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)


def time_of_delivery(properties: Mapping[str, str], now: int) -> int | None:
    """Time of delivery (ms since 1970); None means at once. Raises RequestError.

    `now` is the door's clock. Delays count from it, as they count from the broker's clock in RocketMQ.
    """
    for name in DELAYS:
        text = properties.get(name)
        if text is None:
            continue
        if _NUMBER.fullmatch(text) is None:
            raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"{name} is not a delay: {text[:40]!r}")
        number = int(text)
        if name == LEVEL:
            if not number:
                # RocketMQ's client writes level 0 for no delay.
                continue
            return now + 1_000 * _LEVELS[min(number, len(_LEVELS)) - 1]
        if name == DELIVER_MS:
            return number
        return now + number * (1_000 if name == DELAY_SEC else 1)
    return None


def refuse_in_batch(properties: Mapping[str, str]) -> None:
    """Raise RequestError for a message of a batch that asks for a delay, as RocketMQ's own clients refuse it."""
    found = next((name for name in DELAYS if properties.get(name, "0") != "0"), None)
    if found is not None:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"a message in a batch cannot be delayed: send the one with {found} on its own",
        )
