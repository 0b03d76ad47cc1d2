"""Requests of one gRPC client that are not complete: limits on their bytes and their time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from txbridge_rocketmq.command import MAX_FRAME
from txbridge_rocketmq.grpc_call import GrpcCall
from txbridge_rocketmq.http2_frames import (
    FIRST_WINDOW,
    MESSAGE_HEAD,
    CallError,
    ConnectionBrokenError,
    FrameKind,
    Reason,
    Status,
    frame,
    number,
)

#: Bytes that a call counts whose request is not complete, for its headers and what Python keeps of it.
_CALL_SIZE = 4 * 1024
#: Bytes of all requests of a connection that are not complete. Large requests take turns, so only many of less than 64
#: KiB at the same time take more.
_MAX_COMING = 2 * MAX_FRAME
#: A request must be complete within this time (s) after the start of its call, as a frame of the remoting protocol, and
#: a message of a stream after its own start. While others wait for its memory, it must come at that rate, but for the
#: second time (s).
_REQUEST_S, _STILL_S = 30.0, 1.0


class ComingRequests:
    """Requests of a connection that are not complete, for the event loop only."""

    def __init__(self, write: Callable[[bytes], None], count_work: Callable[[int], None]) -> None:
        self._write = write
        self._count_work = count_work
        self._calls: dict[GrpcCall, None] = {}
        #: Bytes of all of them, those that have leave to come, and large requests that wait for such leave.
        self.size = 0
        self._admitted = 0
        self._waiting: dict[GrpcCall, int] = {}

    def add_call(self, call: GrpcCall) -> None:
        self._calls[call] = None
        self.size += _CALL_SIZE

    def add_data(self, call: GrpcCall, content: bytes, size: int) -> bool:
        """Add what has come of a call's request, `size` bytes of its window; whether the request is complete.

        Raises CallError, and ConnectionBrokenError for more than the window allows.
        """
        call.credit -= size
        if call.credit < 0:
            raise ConnectionBrokenError(Reason.FLOW_CONTROL_ERROR, "a call sends more than its window")
        if call.is_complete or call.has_ended or call.trailers is not None:
            self._count_work(0)
            return False
        if call.is_stream and not call.received:
            call.began = time.monotonic()
        call.received += content
        self.size += len(content)
        if self.size > _MAX_COMING:
            raise CallError(Status.RESOURCE_EXHAUSTED, "too many requests of one connection are incomplete")
        if call.is_stream:
            if size:
                self._give_credit(call, size)
            while (told := call.next_message()) is not None:
                self.size -= MESSAGE_HEAD + len(told)
                self._count_work(len(told))
                call.began = time.monotonic()
                call.add_message(told)
            return False
        needed = call.size
        if needed is None:
            return False
        if len(call.received) >= needed:
            call.request = call.next_message() or b""
            self.size -= needed
            self.end_request(call)
            return True
        if needed > FIRST_WINDOW and not call.admitted and call not in self._waiting:
            self._waiting[call] = needed - FIRST_WINDOW
            self._admit_requests()
        return False

    def end_request(self, call: GrpcCall) -> None:
        """Read no more of a request."""
        if call.is_complete:
            return
        call.is_complete = True
        del self._calls[call]
        self.size -= _CALL_SIZE + len(call.received)
        call.received.clear()
        self._admitted -= call.admitted
        self._waiting.pop(call, None)
        self._admit_requests()

    def shift_times(self, paused: float) -> None:
        """Do not count a time (s) in which nothing was read."""
        for call in self._calls:
            call.began += paused

    def late_calls(self, now: float, *, is_needed: bool) -> Iterator[GrpcCall]:
        """Calls whose requests do not come. `is_needed` says whether others wait for their memory."""
        for call in list(self._calls):
            share = len(call.received) / max(FIRST_WINDOW, call.size or 0) if is_needed else 1.0
            is_due = bool(call.received) if call.is_stream else call not in self._waiting
            if is_due and now - call.began > min(_REQUEST_S, _STILL_S + _REQUEST_S * share):
                yield call

    def _admit_requests(self) -> None:
        """Let large requests come in turns, so that together they take no more memory than the largest frame."""
        for call, size in list(self._waiting.items()):
            if self._admitted and self._admitted + size > MAX_FRAME:
                break
            del self._waiting[call]
            self._admitted += size
            call.admitted, call.began = size, time.monotonic()
            self._give_credit(call, size)

    def _give_credit(self, call: GrpcCall, size: int) -> None:
        call.credit += size
        self._write(frame(FrameKind.WINDOW_UPDATE, 0, call.stream, number(size)))
