"""Orders to topic_reader.py, the process that reads topics for the status page.

Reading a namespace takes a processor for seconds, and hundreds of megabytes. In the worker it would take the
interpreter's lock from the threads that deliver, and the memory would never be given back.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from txbridge.config.worker import WorkerSettings
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.log import get_logger

#: Most bytes of an answer: 50 causes with 100 messages each are two million.
_LONGEST_ANSWER = 8 * 1024 * 1024

_log = get_logger("txbridge.worker")


def read_topics(
    settings: WorkerSettings,
    timeout_s: float,
    *,
    of: str | None = None,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> dict[str, Any]:
    """The history of the transaction `of`, or the open messages of the namespace, as JSON values.

    The process is ended after `timeout_s`. Raises UsageError when there is no such transaction, and
    EnvironmentProblemError with the reason when it cannot be read.
    """
    order = {"settings": settings.model_dump(mode="json")} | ({} if of is None else {"of": of})
    command = [sys.executable, "-P", "-m", "txbridge.worker.http.topic_reader"]
    # Ctrl-C in the worker's terminal is for the worker, which then ends this process.
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True) as process:
        timer = threading.Timer(timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            # Not as an argument or a variable: it may hold passwords.
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            while (line := process.stdout.readline(_LONGEST_ANSWER)).endswith(b"\n"):
                said = json.loads(line)
                if "progress" in said:
                    progress(*said["progress"])
                else:
                    return _answer(said)
        except BrokenPipeError:
            pass  # it has ended before it has read its order
        finally:
            timer.cancel()
            process.kill()
    raise EnvironmentProblemError(
        f"reading the topics has failed, or took longer than {timeout_s:g} s; `txbridge pending` and `txbridge show` "
        "take the time"
    )


def _answer(said: dict[str, Any]) -> dict[str, Any]:
    if "mistake" in said:
        raise UsageError(said["mistake"])
    if "defect" in said:
        _log.error("unexpected_error", error=said["defect"])
        raise EnvironmentProblemError(said["defect"])
    if "error" in said:
        raise EnvironmentProblemError(said["error"])
    answer: dict[str, Any] = said["answer"]
    return answer
