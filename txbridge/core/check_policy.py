"""Times at which a half message is checked, discarded, parked and retried: arithmetic without a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass

from txbridge.core.dedup import AT_LEAST

#: Tolerance for a time of delivery beyond `timer_max_delay`, because the client computes it by its own clock. Clocks
#: that differ by more are wrong (`BrokerClock`).
_LEEWAY_MS = 60_000
#: Back-off of a record (a delivery or a check) that its topic refuses: from one second, doubled up to a minute. A topic
#: that was just created is found within a second. One that stays missing costs one attempt a minute.
_FIRST_RETRY_MS = 1_000
_LONGEST_RETRY_MS = 60_000
#: Age (s) from which on a check that finds no row in a barrier table may roll the message back. Until then its sender
#: may wait for a connection or a lock: SQLAlchemy's pool gives up after 30 s, MySQL's lock wait after 50 s.
DEFAULT_PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True)
class CheckPolicy:
    """RocketMQ's options of the check loop (defaults of BrokerConfig) and ours. All times in milliseconds."""

    #: transactionTimeOut: age at which a message without an immunity of its own is checked first.
    transaction_timeout: int = 6_000
    #: transactionCheckInterval: time between two checks of a message.
    transaction_check_interval: int = 30_000
    #: transactionCheckMax: checks before a message is discarded.
    transaction_check_max: int = 15
    #: RocketMQ's fileReservedTime: a message still undecided at this age is discarded as EXPIRED.
    transaction_max_age: int = 72 * 3_600_000
    #: An open message is parked before the low watermark lags by this many records, bytes or milliseconds. This bounds
    #: the part of HALF that a take-over has to read again.
    park_after_records: int = 100_000
    park_after_bytes: int = 64 * 1024 * 1024
    park_after: int = 30_000
    #: Retention of the discard topic: the time for which a discarded message can be resumed.
    discard_retention: int = 30 * 24 * 3_600_000
    #: timerMaxDelaySec: longest time from the birth of a message to its time of delivery.
    longest_delay: int = 72 * 3_600_000
    #: Copies of at least this many half messages are recognised, whatever their age (core/dedup.py).
    recognise_at_least: int = AT_LEAST

    @property
    def effective_park_after(self) -> int:
        """`park_after`, or less: a message must be parked before its greatest age, to be discarded by age."""
        return min(self.park_after, self.transaction_max_age // 2)

    def first_check(self, born: int, immunity: str | None) -> int:
        """Time (ms) of the first check.

        As in RocketMQ's getImmunityTime, a whole number of seconds >= 0 replaces transaction_timeout. Anything else
        (absent, -1, 5.5, garbage) does not. The time is never later than transaction_max_age, where the message is
        discarded anyway. Unlike in RocketMQ (#615, #8311) waiting costs no check.
        """
        wait = self.transaction_timeout
        if immunity is not None and immunity.isascii() and immunity.isdigit():
            digits = immunity.lstrip("0")
            # Twelve digits of seconds are 30,000 years. int() refuses thousands of digits.
            wait = int(digits or "0") * 1_000 if len(digits) <= 12 else self.transaction_max_age
        return born + min(wait, self.transaction_max_age)

    def next_check(self, sent: int) -> int:
        """Time (ms) of the check after one sent at `sent`. After the last check: time of the discard."""
        return sent + self.transaction_check_interval

    @property
    def last_check(self) -> int:
        """Age (ms) of a message at its last check, if every check is sent when it is due."""
        return self.transaction_timeout + (self.transaction_check_max - 1) * self.transaction_check_interval

    def brought_forward(
        self, due: int, now: int, step: int, since: int, checks: int, *, is_refused: bool = False
    ) -> int:
        """Due time (ms) of a pending or held message after the brokers' clock has gone back by `step` to `now`.

        `since`: the time from which its age counts. `is_refused`: whether its topic refused it last.
        """
        if is_refused:
            return min(due, now + _LONGEST_RETRY_MS)
        if checks:
            return min(due, now + self.transaction_check_interval)
        if since <= now:
            return due
        if due >= since or step < since - now:
            return due - min(step, since - now)
        # A worker before this one has brought it forward. What its immunity was, nobody knows.
        return min(due, now + self.transaction_timeout)

    def is_exhausted(self, checks: int) -> bool:
        """Whether every check has been sent."""
        return checks >= self.transaction_check_max

    def problem_of_delay(self, born: int, deliver_at: int) -> str | None:
        """The reason for which a message must not wait for its time of delivery (ms), or None."""
        if deliver_at - born <= self.longest_delay + _LEEWAY_MS:
            return None
        return (
            f"it is to be delivered {(deliver_at - born) / 1000} s after its birth, and timer_max_delay is "
            f"{self.longest_delay / 1000:g} s"
        )

    def expires(self, born: int) -> int:
        return born + self.transaction_max_age

    def retry_refused(self, now: int, attempts: int) -> int:
        """Time (ms) of the next attempt for a record that its topic refused, after this many attempts (1 or more)."""
        return now + min(_FIRST_RETRY_MS << min(attempts - 1, 10), _LONGEST_RETRY_MS)
