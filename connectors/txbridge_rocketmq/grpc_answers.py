"""Answers to the calls of one gRPC client, as far as its windows allow."""

from __future__ import annotations

import time
from collections.abc import Callable

from txbridge_rocketmq.client_connection import STUCK_S
from txbridge_rocketmq.command import MAX_FRAME
from txbridge_rocketmq.grpc_call import GrpcCall
from txbridge_rocketmq.http2_frames import (
    BEGINNING,
    EMPTY_TABLE,
    END_HEADERS,
    END_STREAM,
    FIRST_WINDOW,
    MAX_FRAME_SIZE,
    MAX_WINDOW,
    ConnectionBrokenError,
    FrameKind,
    Reason,
    frame,
    number,
)


class AnswerWindows:
    """What a client may be sent, for the event loop only."""

    def __init__(self, write: Callable[[bytes], None], drop_call: Callable[[GrpcCall], None]) -> None:
        self._write = write
        self._drop_call = drop_call
        self._window = self._first_window = FIRST_WINDOW
        #: Calls that wait for their windows, each with the time (s) since which it has got nothing.
        self._blocked: dict[GrpcCall, float] = {}
        self._is_wider = False
        #: Beginning of the next headers.
        self._table_size = b""
        #: Whether the client does not even take what it may be sent.
        self.is_held = False

    def empty_table(self) -> None:
        """Say once that headers use no table. A client that limits its size, such as Node, wants to be told."""
        self._table_size = EMPTY_TABLE

    def set_first_window(self, value: int) -> None:
        """Set the window of each call. Raises ConnectionBrokenError."""
        self._first_window = _checked(value)
        self._is_wider = True

    def widen_window(self, call: GrpcCall | None, added: int) -> None:
        """Widen the window of a call, or the one of all calls together. Raises ConnectionBrokenError."""
        if call is None:
            self._window = _checked(self._window + added)
        else:
            call.window += added
            _checked(call.window + self._first_window)
        self._is_wider = True

    def send_answer(self, call: GrpcCall) -> None:
        """Send what the windows allow of a call's answer."""
        if not call.is_answered:
            call.is_answered = True
            self._write_headers(call, 0, BEGINNING)
        has_waited = call in self._blocked
        while call.unsent:
            size = min(len(call.unsent), call.window + self._first_window, self._window, MAX_FRAME_SIZE)
            if size <= 0 or self.is_held:
                if call not in self._blocked:
                    self._blocked[call] = time.monotonic()
                    # One that has waited before has become shorter: no need to add all of them up again.
                    if not has_waited:
                        self._limit_blocked(call)
                return
            self._blocked.pop(call, None)
            self._write(frame(FrameKind.DATA, 0, call.stream, bytes(call.unsent[:size])))
            del call.unsent[:size]
            call.window -= size
            self._window -= size
        call.note_sent()
        if call.trailers is not None:
            self._write_headers(call, END_STREAM, call.trailers)
            if not call.has_ended:
                # The door does not want the rest of the request.
                self._write(frame(FrameKind.RST_STREAM, 0, call.stream, number(Reason.NO_ERROR)))
            self._drop_call(call)

    def send_blocked(self) -> None:
        """Send what waits, if windows have become wider or the client takes bytes again."""
        if self._is_wider and not self.is_held:
            self._is_wider = False
            for call in list(self._blocked):
                self.send_answer(call)

    def hold_answers(self, *, is_held: bool) -> None:
        self.is_held = is_held
        self._is_wider |= not is_held
        self.send_blocked()

    def _write_headers(self, call: GrpcCall, flags: int, block: bytes) -> None:
        self._write(frame(FrameKind.HEADERS, END_HEADERS | flags, call.stream, self._table_size + block))
        self._table_size = b""

    def _limit_blocked(self, latest: GrpcCall) -> None:
        """Give up the latest answer if all that wait take more memory than the largest frame. Routes can be large."""
        if len(self._blocked) > 1 and sum(len(one.unsent) for one in self._blocked) > MAX_FRAME:
            self._write(frame(FrameKind.RST_STREAM, 0, latest.stream, number(Reason.ENHANCE_YOUR_CALM)))
            self._drop_call(latest)

    def forget_call(self, call: GrpcCall) -> None:
        self._blocked.pop(call, None)

    def is_stuck(self, now: float) -> bool:
        """Whether a call has got nothing for too long, because its windows stay shut."""
        return any(now - since > STUCK_S for since in self._blocked.values())


def _checked(window: int) -> int:
    if window > MAX_WINDOW:
        raise ConnectionBrokenError(Reason.FLOW_CONTROL_ERROR, "a window is too large")
    return window
