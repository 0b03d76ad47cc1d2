"""Frames of RocketMQ's remoting protocol: one command each, its header as JSON or in RocketMQ's binary form."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from txbridge_rocketmq.codes import HTTP2_PREFACE

#: Largest header, in bytes. The properties of a message have at most 32 KiB. JSON's escapes can make these six times as
#: long.
MAX_HEADER = 256 * 1024
#: RocketMQ's own limit of a frame (com.rocketmq.remoting.frameMaxLength).
MAX_FRAME = 16 * 1024 * 1024

_JSON, _BINARY = 0, 1
_RESPONSE, ONEWAY = 1, 2
#: Version number of RocketMQ 5.3.2. A client remembers it, and uses older requests for older brokers.
_VERSION = 477
#: A language that RocketMQ's clients know. They cannot read a frame with another name.
_LANGUAGE = "PYTHON"
_WORD = struct.Struct(">i")
_BINARY_FIXED = struct.Struct(">hBhiii")
_TWICE = "the header has two fields of one name"


class FrameError(Exception):
    """Bytes that are no frame. Later bytes of the connection cannot be read either."""


@dataclass(slots=True)
class RemotingCommand:
    """A request or a response."""

    code: int
    opaque: int
    flag: int = 0
    remark: str | None = None
    fields: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    language: str = ""

    @property
    def is_response(self) -> bool:
        return bool(self.flag & _RESPONSE)

    @property
    def is_oneway(self) -> bool:
        return bool(self.flag & ONEWAY)


def length_of(prefix: bytes | bytearray, max_frame: int = MAX_FRAME) -> int:
    """The number of bytes that follow the first four of a frame. Raises FrameError."""
    (length,) = _WORD.unpack_from(prefix)
    if not 4 <= length <= max_frame:
        if HTTP2_PREFACE.startswith(prefix[:4]):
            raise FrameError("the client speaks HTTP/2: give a client of gRPC the address of --grpc-listen")
        raise FrameError(
            f"a frame of {length} bytes, not of 4 to {max_frame}, or something other than RocketMQ's remoting protocol"
        )
    return int(length)


def decode(frame: bytes) -> RemotingCommand:
    """Read a frame without its first four bytes. Raises FrameError and nothing else."""
    if len(frame) < 4:
        raise FrameError("no header")
    (mark,) = _WORD.unpack_from(frame)
    kind, length = mark >> 24 & 0xFF, mark & 0xFFFFFF
    if length > len(frame) - 4 or length > MAX_HEADER:
        raise FrameError(f"a header of {length} bytes in a frame of {len(frame)}")
    header, body = frame[4 : 4 + length], frame[4 + length :]
    if kind == _JSON:
        return _decode_json(header, body)
    if kind == _BINARY:
        return _decode_binary(header, body)
    raise FrameError(f"serialisation {kind} is neither JSON (0) nor ROCKETMQ (1)")


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise FrameError(_TWICE)
    return found


_decoder = json.JSONDecoder(object_pairs_hook=_object_of)


def _decode_json(header: bytes, body: bytes) -> RemotingCommand:
    try:
        # Without spaces around it, as `decode` would look for them with regular expressions: 1.5 of its 4 µs.
        text = header.decode().strip(" \t\r\n")
        given, end = _decoder.raw_decode(text)
    except (ValueError, RecursionError):
        raise FrameError("the header is not JSON") from None
    if not isinstance(given, dict) or end < len(text):
        raise FrameError("the header is not a JSON object")
    numbers: Any = given.get("code"), given.get("opaque", 0), given.get("flag", 0)
    # A bool is an int as well.
    if set(map(type, numbers)) != {int} or not -(2**31) <= min(numbers) <= max(numbers) < 2**31:
        raise FrameError("code, opaque and flag must be 32-bit numbers")
    fields = given.get("extFields") or {}
    remark = given.get("remark")
    if not isinstance(fields, dict) or not (remark is None or isinstance(remark, str)):
        raise FrameError("extFields must be an object, and remark a string")
    code, opaque, flag = numbers
    texts = {name: one if isinstance(one, str) else json.dumps(one) for name, one in fields.items() if one is not None}
    try:
        # JSON's escapes can hold half of a surrogate pair, which UTF-8 cannot express.
        if "\\ud" in text or "\\uD" in text:
            "".join([*texts, *texts.values(), remark or ""]).encode()
    except UnicodeEncodeError:
        raise FrameError("the header holds half of a surrogate pair") from None
    return RemotingCommand(code, opaque, flag, remark, texts, body, str(given.get("language", ""))[:20])


def _decode_binary(header: bytes, body: bytes) -> RemotingCommand:
    try:
        code, language, _, opaque, flag, remark_length = _BINARY_FIXED.unpack_from(header)
        remark, position = _text(header, _BINARY_FIXED.size, remark_length)
        (fields_length,) = _WORD.unpack_from(header, position)
        position += _WORD.size
        if position + fields_length != len(header):
            raise FrameError("extFields do not fill the header")
        fields: dict[str, str] = {}
        while position < len(header):
            (length,) = struct.unpack_from(">h", header, position)
            name, position = _text(header, position + 2, length)
            if name in fields:
                raise FrameError(_TWICE)
            (length,) = _WORD.unpack_from(header, position)
            fields[name], position = _text(header, position + _WORD.size, length)
    except (struct.error, UnicodeDecodeError):
        raise FrameError("the header is not of RocketMQ's binary form") from None
    return RemotingCommand(code, opaque, flag, remark or None, fields, body, str(language))


def _text(header: bytes, start: int, length: int) -> tuple[str, int]:
    if not 0 <= length <= len(header) - start:
        raise FrameError("a text is longer than the header")
    return header[start : start + length].decode(), start + length


def response(
    request: RemotingCommand,
    code: int,
    remark: str | None = None,
    fields: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """The frame of an answer. It is JSON whatever form the request has, as with RocketMQ's brokers.

    `fields` may be empty, because a client needs extFields in the answer for a stored message.
    """
    return encode(code, request.opaque, fields, body, flag=_RESPONSE, remark=remark)


def encode(
    code: int,
    opaque: int,
    fields: Mapping[str, str] | None,
    body: bytes = b"",
    *,
    flag: int = 0,
    remark: str | None = None,
) -> bytes:
    """The frame of a request, which is answered unless `flag` is ONEWAY, or of a response."""
    # Written by hand: json.dumps takes three times as long.
    texts = remarks = ""
    if fields is not None:
        pairs = ",".join([f"{quoted(name)}:{quoted(text)}" for name, text in fields.items()])
        texts = f'"extFields":{{{pairs}}},'
    if remark is not None:
        remarks = f'"remark":{quoted(remark)},'
    header = (
        f'{{"code":{code:d},{texts}"flag":{flag:d},"language":"{_LANGUAGE}","opaque":{opaque:d},{remarks}'
        f'"serializeTypeCurrentRPC":"JSON","version":{_VERSION}}}'
    ).encode()
    return b"".join([_WORD.pack(4 + len(header) + len(body)), _WORD.pack(len(header)), header, body])
