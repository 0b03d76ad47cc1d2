"""`python -m txbridge.testing.worker CLOCK_FILE`: the worker, with a clock that a test can shift.

Everything else is the worker as it is; its options come from the environment (TXBRIDGE_<OPTION>). CLOCK_FILE holds
the milliseconds by which the worker's time is ahead. Without the file the time is true.

The shift applies to the time that the worker derives from its machine's clock and the brokers' clocks, so that these
still agree. A wrong clock of the machine would shift nothing, because checks go by the earlier one.
"""

from __future__ import annotations

import sys
from pathlib import Path

from txbridge import log
from txbridge.config.foreign_variables import forget_foreign_variables
from txbridge.config.sources import load_settings
from txbridge.errors import TxBridgeError
from txbridge.kafka.environment import Outside


class ShiftedClock(Outside):
    """The real environment, with a shift of the time at which messages are due. Time-outs go by the true clock."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def shift(self) -> int:
        try:
            text = self._file.read_text("ascii")
        except FileNotFoundError:
            return 0
        return int(text)


def main() -> None:
    """Run until a signal ends it. A mistake in the options prints one line to stderr; the exit code is 2."""
    forget_foreign_variables()
    from txbridge.worker.app import run  # noqa: PLC0415 - it imports the libraries that read them

    try:
        settings = load_settings({})
        log.configure(settings.log_format, settings.log_level)
        run(settings, ShiftedClock(Path(sys.argv[1])))
    except TxBridgeError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()
