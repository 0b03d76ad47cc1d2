"""Start and end of a client. Each happens once, also when several threads ask for it at the same time."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from confluent_kafka import KafkaError

from txbridge.client.base import process
from txbridge.client.base.log import report
from txbridge.client.errors import PrepareError, closed, started_before_a_fork
from txbridge.client.options import ClientOptions
from txbridge.deadline import Deadline
from txbridge.errors import EnvironmentProblemError, KafkaUnreachableError, UsageError
from txbridge.kafka.errors import ALL_BROKERS_DOWN

if TYPE_CHECKING:
    from txbridge.client.checks.calls import CheckCalls
    from txbridge.client.runtime import Runtime

#: Bridges in this process, which tests use instead of Kafka and a worker (txbridge.testing.memory). By the
#: bootstrap.servers that stand for a bridge: starts a client on it, at once, or raises as `start`. A client that starts
#: without Kafka is returned in any case.
BRIDGES: dict[str, Callable[[ClientOptions, CheckCalls], Runtime]] = {}
#: Seconds that calls wait for a start in the background, which takes a few tenths of a second. If Kafka is away, a
#: service has to take orders soon, and librdkafka needs some seconds to give up a broker that does not answer.
_START_SOON_S = 5.0
#: Time limit (s) of the first attempt, so that these calls know its reason.
_FIRST_ATTEMPT_S = 4.0
#: Pause (s) before the next attempt to start when Kafka answers and something is wrong.
_START_AGAIN_S = 5.0


class ClientLifetime:
    """Starts and ends the Runtime of a client. Thread-safe, and a signal may interrupt it anywhere."""

    def __init__(self, options: ClientOptions, checks: CheckCalls) -> None:
        self._options = options
        self._checks = checks
        #: Held while the client starts or ends. A signal handler may close the client that its own thread is starting.
        self._lock = threading.RLock()
        #: True from the begin of `close`, and from its end.
        self._closed = self._ended = False
        #: Generation of the process in which the client was started; None until then.
        self._process: int | None = None
        #: The started client; None until then.
        self.runtime: Runtime | None = None
        #: Held while the start in the background begins, and until when calls wait for it; 0 before.
        self._begins = threading.RLock()
        self._wait_until = 0.0
        #: Set when an attempt of its thread has ended.
        self._was_tried = threading.Event()
        #: Why the last one has failed; None if it has not.
        self._start_error: BaseException | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the client runs in this process and Kafka answers, if it has one."""
        if not self._options.has_kafka:
            return not self._closed
        runtime = self.runtime
        return not (runtime is None or self._closed or self.is_of_another_process()) and runtime.is_connected

    def start_client(self) -> Runtime | None:
        """Return the Runtime, and start it if needed. None: Kafka is away, and the start goes on in the background.

        Raises UsageError after close and a fork, else as `start`. None also if there is no Kafka at all.
        """
        if not self._options.has_kafka:
            self._require_open()
            return None
        return self._start_soon() if self._options.starts_in_background else self.ensure_started()

    def require_runtime(self) -> Runtime:
        """Do as `start_client`, and raise why Kafka has not answered yet."""
        runtime = self.runtime or self.start_client()
        if runtime is None:
            if not self._options.has_kafka:
                raise UsageError("this bridge has no Kafka: what it announces are rows of the outbox")
            self.raise_start_error()
            raise KafkaUnreachableError(
                f"Kafka has not answered since the start ({self._start_error or 'no answer yet'})"
            )
        return runtime

    def ensure_started(self, timeout: float | None = None) -> Runtime:
        """Return the Runtime, and start it within `timeout` seconds (None: `start_timeout`). Raises as above."""
        self._require_usable()
        options = self._options if timeout is None else replace(self._options, start_timeout=timeout)
        # Set before the lock is taken. A thread of the parent may hold the lock at a fork, and in the child forever.
        self._process = process.generation()
        failed = self._start_error
        with self._lock:
            # Checked again, because close() may have come while another call was starting.
            self._require_open()
            if self.runtime is None:
                if self._start_error is not None and self._start_error is not failed:
                    # Of the attempt that this call has waited for. Each in its turn would wait for as long again.
                    raise self._start_error.with_traceback(None)
                # The next error holds this frame, and so would hold all errors of an outage, and their Kafka clients.
                del failed
                try:
                    if (open_client := BRIDGES.get(options.bootstrap_servers)) is not None:
                        self.runtime = open_client(options, self._checks)
                    else:
                        # Imported here: a program that never sends needs neither the admin client nor our connections.
                        from txbridge.client.runtime import start  # noqa: PLC0415

                        self.runtime = start(options, self._checks, lambda: self._closed)
                except SystemError as error:
                    # confluent-kafka runs signal handlers inside its requests and ignores that one has raised. What it
                    # has raised, a KeyboardInterrupt mostly, is the cause.
                    raise error.__cause__ or error from None
                except Exception as error:
                    self._start_error = error
                    raise
                self._start_error = None
            return self.runtime

    def _start_soon(self) -> Runtime | None:
        """Start in a thread that tries until it succeeds, and wait some seconds for it."""
        self._require_usable()
        if self._options.bootstrap_servers in BRIDGES:
            # It answers at once.
            return self.ensure_started()
        with self._begins:
            if not self._wait_until:
                self._wait_until = time.monotonic() + _START_SOON_S
                threading.Thread(target=self._keep_starting, name="txbridge-start", daemon=True).start()
        self._was_tried.wait(max(0.0, self._wait_until - time.monotonic()))
        return self.runtime

    def raise_start_error(self) -> None:
        """Raise why the start in the background has failed, unless Kafka is away: that mends itself."""
        error = self._start_error
        if error is not None and not isinstance(error, KafkaUnreachableError):
            # It is raised more than once, and would collect the traces of all times.
            raise error.with_traceback(None)

    def refuse_send(self) -> None:
        """Raise why a message cannot be sent before the client is started, unless an outbox stores it instead.

        Raises PrepareError while Kafka is away, and as `start` what is wrong in Kafka. Raises UsageError in any case,
        for a setting that can never work.
        """
        error = self._start_error
        if self._options.forwarding is not None and (error is None or isinstance(error, EnvironmentProblemError)):
            return
        self.raise_start_error()
        raise PrepareError(
            f"nothing was sent: Kafka has not answered since the start ({error or 'no answer yet'}); is_connected says "
            "when it has",
            KafkaError(ALL_BROKERS_DOWN),
        )

    def _keep_starting(self) -> None:
        timeout, said = min(_FIRST_ATTEMPT_S, self._options.start_timeout), ""
        while self.runtime is None and not self._closed:
            try:
                self.ensure_started(timeout)
            except EnvironmentProblemError as error:
                if said != (said := str(error)):
                    report(logging.WARNING, "client_not_started", reason=error, next="the start goes on")
                self._was_tried.set()
                time.sleep(_START_AGAIN_S)
            except BaseException as error:  # noqa: BLE001  calls raise it
                self._start_error = error
                break
            timeout = self._options.start_timeout
        self._was_tried.set()

    def is_of_another_process(self) -> bool:
        """Whether the start has begun before a fork. The client's threads do not exist in this process then."""
        return self._process is not None and self._process != process.generation()

    def close(
        self,
        timeout: float | None = None,
        finish: Callable[[float | None], None] = lambda _: None,
        refuse_calls: Callable[[], None] = lambda: None,
    ) -> None:
        """End everything within `timeout` seconds (None: no limit), or wait for another call that does it already.

        `refuse_calls` returns at once. `finish` is `finish_checks` of Runtime.close. Raises UsageError in a callback.
        """
        deadline = Deadline(timeout)
        if self.runtime is not None and self.runtime.is_called_by_it():
            raise UsageError("close() was called by a callback, whose thread it would have to wait for")
        self._closed = True
        refuse_calls()
        # A signal may interrupt this at any call, also right after the lock was taken.
        try:
            if self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)) and not self._ended:
                if self.runtime is None:
                    finish(0)
                else:
                    self.runtime.close(deadline.timeout, finish)
                self._ended = True
                report(logging.INFO, "client_closed", group=self._options.group)
        finally:
            try:  # noqa: SIM105  the call of suppress() is one that a signal may interrupt
                self._lock.release()
            except RuntimeError:
                # The lock was not taken, because another call held it for longer than this one waits.
                pass

    def _require_usable(self) -> None:
        self._require_open()
        if self.is_of_another_process():
            raise started_before_a_fork()

    def _require_open(self) -> None:
        if self._closed:
            raise closed()
