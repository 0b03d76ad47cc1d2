"""`manage.py txbridge_answer_checks`."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from txbridge.errors import TxBridgeError
from txbridge_django.conf import valid_options
from txbridge_django.process_producer import get_producer


class Command(BaseCommand):
    """Command that starts the producer only to answer checks."""

    help = "Answer the checks of the producer group until a signal ends it, beside the web processes or without them."

    def handle(self, *_: Any, **__: Any) -> None:
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # nohup ignores SIGHUP.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: ended.set())
        try:
            if valid_options().kafka is None:
                raise CommandError("TXBRIDGE has no KAFKA: nobody asks about rows of the outbox")
            producer = get_producer()
        except TxBridgeError as error:
            raise CommandError(str(error)) from None
        self.stdout.write(f"answering checks of {producer.group}")
        self.stdout.flush()
        ended.wait()
        producer.close()
