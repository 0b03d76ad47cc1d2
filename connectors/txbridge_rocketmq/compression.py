"""Decompression of bodies that a client has compressed. They arrive in Kafka as its application has sent them."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable
from typing import Protocol

import lz4.frame

from txbridge_rocketmq.codes import BodyTooLargeError, RequestError, ResponseCode

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESSED = 1
#: Bits of the system flag that name the compression.
_KIND_SHIFT, _KIND_MASK = 8, 7


class _Decompressor(Protocol):
    def decompress(self, data: bytes, max_length: int) -> bytes: ...

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes | None: ...


def _zlib() -> _Decompressor:
    # The header shows the format: zlib's, which remoting clients send, or gzip's, which gRPC clients may send.
    return zlib.decompressobj(zlib.MAX_WBITS | 32)


#: Decompressors by the kind in the system flag. Clients that know only ZLIB send 0. None of them makes more output than
#: it is asked for. ZSTD's library bounds the window (128 MiB), and touches only as much of it as output has filled.
_STREAMS: dict[int, Callable[[], _Decompressor]] = {
    0: _zlib,
    1: lz4.frame.LZ4FrameDecompressor,
    2: zstd.ZstdDecompressor,
    3: _zlib,
}
#: Errors for unreadable input. LZ4's library raises RuntimeError, because it has no class of its own.
_UNREADABLE = (zlib.error, zstd.ZstdError, RuntimeError)


def decompressed(body: bytes, sys_flag: int, limit: int) -> bytes:
    """The body as the application sent it. Raises RequestError. It stops one byte above `limit`."""
    if not sys_flag & COMPRESSED:
        if len(body) > limit:
            raise BodyTooLargeError(limit)
        return body
    kind = sys_flag >> _KIND_SHIFT & _KIND_MASK
    make = _STREAMS.get(kind)
    if make is None:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the body has compression type {kind}; the txbridge door reads LZ4 (1), ZSTD (2) and ZLIB (3)",
        )
    stream = make()
    try:
        text = stream.decompress(body, limit + 1)
    except _UNREADABLE as error:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the compressed body cannot be read: {error}") from None
    if len(text) > limit:
        raise BodyTooLargeError(limit)
    if not stream.eof:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the compressed body is truncated")
    if stream.unused_data:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the compressed body is followed by other bytes")
    return text
