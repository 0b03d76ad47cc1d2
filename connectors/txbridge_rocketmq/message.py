"""RocketMQ's messages as bytes: properties, the store format of one message, a batch from a client, compression."""

from __future__ import annotations

import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Protocol

import lz4.frame

from txbridge_rocketmq.codes import BodyTooLargeError, RequestError, ResponseCode

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

#: Largest encoded properties of a message, in bytes: RocketMQ stores their length in a short.
MAX_PROPERTIES = 32_767

#: Maximum of messages in a batch. A message takes some 70 microseconds, in which nothing else is served, and a few KiB
#: of compressed bytes hold hundreds of thousands of them. Clients split batches at 1 MiB, as RocketMQ's examples do.
MAX_BATCH = 10_000

PREPARED = 4
#: Both bits of the transaction's state.
TRANSACTION_MASK = 12
_BORN_HOST_V6, _STORE_HOST_V6 = 16, 32

_MAGIC = 0xDAA320A7 - (1 << 32)

Address = tuple[IPv4Address | IPv6Address, int]


def parse_properties(text: str) -> dict[str, str]:
    """Read `name 0x01 value 0x02 ...`. An entry without a value is left out, as in RocketMQ."""
    if len(text) > MAX_PROPERTIES or len(text.encode()) > MAX_PROPERTIES:
        raise RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the properties take more than {MAX_PROPERTIES} bytes")
    found: dict[str, str] = {}
    for entry in text.split("\x02"):
        name, separator, value = entry.partition("\x01")
        if separator and name and value:
            found[name] = value
    return found


def encode_properties(properties: Mapping[str, str]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as a broker sends it to a client."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    flag: int
    body: bytes
    properties: Mapping[str, str]
    #: Times in ms.
    born: int
    stored: int
    born_host: Address
    store_host: Address

    def encode_message(self) -> bytes:
        """Encode it in the format of the commit log, which clients read."""
        born_host, born_v6 = _host(self.born_host)
        store_host, store_v6 = _host(self.store_host)
        sys_flag = (_BORN_HOST_V6 if born_v6 else 0) | (_STORE_HOST_V6 if store_v6 else 0)
        topic, properties = self.topic.encode(), encode_properties(self.properties).encode()
        parts = [
            struct.pack(">iIii", _MAGIC, zlib.crc32(self.body) & 0x7FFFFFFF, self.queue_id, self.flag),
            struct.pack(">qqiq", self.queue_offset, self.physical_offset, sys_flag, self.born),
            born_host,
            struct.pack(">q", self.stored),
            store_host,
            struct.pack(">iq", 0, 0),
            struct.pack(">i", len(self.body)),
            self.body,
            struct.pack(">B", len(topic)),
            topic,
            struct.pack(">h", len(properties)),
            properties,
        ]
        return struct.pack(">i", 4 + sum(map(len, parts))) + b"".join(parts)


def _host(address: Address) -> tuple[bytes, bool]:
    ip, port = address
    return ip.packed + struct.pack(">i", port), ip.version == 6


def address_of(host: str, port: int) -> Address:
    """The address of a socket. An IPv4 address that a dual-stack socket has mapped to IPv6 becomes IPv4 again."""
    ip = ip_address(host.partition("%")[0])
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip, port


def parse_address(text: str | None) -> Address:
    """Read `ip:port`, as `text_of` writes it. The address is 0.0.0.0:0 if it is no such text."""
    host, _, port = (text or "").rpartition(":")
    try:
        if port.isascii() and port.isdigit() and int(port) < 65_536:
            return address_of(host.strip("[]"), int(port))
    except ValueError:
        pass
    return IPv4Address(0), 0


def text_of(address: Address) -> str:
    ip, port = address
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"


@dataclass(frozen=True, slots=True)
class BatchedMessage:
    """One message of a batch."""

    flag: int
    body: bytes
    properties: dict[str, str]


#: Total size, magic, CRC, flag, and the length of the body.
_BATCHED = struct.Struct(">iiiii")


def parse_batch(body: bytes) -> Iterator[BatchedMessage]:
    """The messages of a SEND_BATCH_MESSAGE. Raises RequestError."""
    position = count = 0
    while position < len(body):
        count += 1
        if count > MAX_BATCH:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"a batch may have at most {MAX_BATCH} messages: send smaller ones"
            )
        try:
            size, _, _, flag, length = _BATCHED.unpack_from(body, position)
            start = position + _BATCHED.size
            (properties,) = struct.unpack_from(">h", body, start + length)
            end = start + length + 2 + properties
            if length < 0 or properties < 0 or size != end - position or end > len(body):
                raise _no_batch()
            text = body[end - properties : end].decode()
        except (struct.error, UnicodeDecodeError):
            raise _no_batch() from None
        yield BatchedMessage(flag, body[start : start + length], parse_properties(text))
        position = end


def _no_batch() -> RequestError:
    return RequestError(ResponseCode.MESSAGE_ILLEGAL, "the body is not a well-formed batch of messages")


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
