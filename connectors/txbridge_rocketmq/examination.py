"""Examination of a door for `txbridge doctor --door`: its files, and the answers at its advertised addresses."""

from __future__ import annotations

import json
import os
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from txbridge.doctor.finding import Check, Finding, note, ok, problem, warning
from txbridge.errors import UsageError
from txbridge_rocketmq.access import ACCESS_KEY, SIGNATURE, WARNED_DAYS, AccessKey, signature
from txbridge_rocketmq.codes import HTTP2_PREFACE, RequestCode, ResponseCode
from txbridge_rocketmq.command import FrameError, RemotingCommand, decode, encode, length_of
from txbridge_rocketmq.door_options import DoorOptions, door_options
from txbridge_rocketmq.http2_frames import FrameKind, frame
from txbridge_rocketmq.routes import CLUSTER, DEFAULT_TOPIC

#: A door answers in milliseconds; a client gives up after three seconds.
_ANSWER_S = 3.0
#: Bytes of the header of a frame of HTTP/2. The fourth is its type.
_FRAME_HEAD = 9


def examine_door(place: Any, real_topics: Sequence[str], environ: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yield the findings about the door with this DoorPlace of the command."""
    try:
        options = door_options(place, environ)
    except UsageError as error:
        yield problem(Check.DOOR, str(error), "fix it: a door does not start like this")
        return
    yield ok(Check.DOOR, f"the secret has {len(options.secret)} characters")
    yield from _protection(options, place.access_keys, place.tls_key)
    for topic in real_topics:
        if "." in topic:
            yield warning(
                Check.DOOR,
                f"the real topic {topic} has a dot in its name, which clients of RocketMQ refuse",
                "use letters, digits, - and _ for topics that they send to",
            )
    key = options.access.any_key
    for address in options.addresses or (f"{options.host}:{options.port}",):
        yield _remoting(address, options.addresses, key)
    if options.grpc is not None:
        yield _grpc(f"{options.grpc[0]}:{options.grpc[1]}", options.tls is not None)


def _protection(options: DoorOptions, keys: Path | None, tls_key: Path | None) -> Iterator[Finding]:
    for file in (keys, tls_key):
        if file is not None and file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
            yield warning(Check.DOOR, f"every user of this machine can read or write {file}", f"chmod 640 {file}")
    if options.tls is not None and options.tls.days_left < WARNED_DAYS:
        text = f"the certificate expires in {options.tls.days_left:.0f} days"
        yield warning(Check.DOOR, text, "renew it: a running door reads the new files by itself")
    if options.access.any_key is None:
        yield note(
            Check.DOOR, "no AccessKey is required: the door serves everyone who can reach it", "give --access-keys FILE"
        )
    elif options.tls is None:
        yield warning(
            Check.DOOR,
            "AccessKeys without TLS: whoever reads a request can send it again, and make others of it",
            "give --tls-certificate and --tls-key",
        )
    else:
        yield ok(Check.DOOR, "AccessKeys are required, and the certificate matches its key")


def _remoting(address: str, advertised: Sequence[str], key: AccessKey | None) -> Finding:
    try:
        with _connected(address) as wire:
            # A door gives a route to everyone. It looks at the key of this request, which has no group to leave.
            answer = _ask_door(wire, RequestCode.UNREGISTER_CLIENT, {}, key) if key else None
            if answer is None or answer.code != ResponseCode.NO_PERMISSION:
                answer = _ask_door(wire, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": DEFAULT_TOPIC}, key)
    except (OSError, FrameError) as error:
        return _silent(address, error)
    if answer.code == ResponseCode.NO_PERMISSION:
        return problem(Check.DOOR, f"{address} refuses the AccessKey: {answer.remark}", "give all doors the same keys")
    found = _addresses(answer)
    if found is None:
        return problem(Check.DOOR, f"{address} is not a txbridge door", "find out which process listens there")
    if advertised and set(found) != set(advertised):
        return warning(
            Check.DOOR,
            f"{address} sends its clients to {', '.join(found)}, not to {', '.join(advertised)}",
            "give all doors the same list, --advertised",
        )
    return ok(Check.DOOR, f"{address} answers, and sends clients to {', '.join(found)}")


def _ask_door(wire: socket.socket, code: RequestCode, fields: dict[str, str], key: AccessKey | None) -> RemotingCommand:
    if key is not None:
        fields[ACCESS_KEY] = key.name
        fields[SIGNATURE] = signature(key.secret, fields, b"")
    wire.sendall(encode(code, 1, fields))
    return decode(_exactly(wire, length_of(_exactly(wire, 4))))


def _addresses(answer: RemotingCommand) -> list[str] | None:
    """The addresses in a door's route; None if the route is not a door's."""
    try:
        brokers = json.loads(answer.body)["brokerDatas"]
        if answer.code == ResponseCode.SUCCESS and all(one["cluster"] == CLUSTER for one in brokers):
            return [one["brokerAddrs"]["0"] for one in brokers]
    except (ValueError, KeyError, TypeError):
        pass
    return None


def _grpc(address: str, tls: bool) -> Finding:
    try:
        with _connected(address) as plain:
            wire = _encrypted(plain) if tls else plain
            wire.sendall(HTTP2_PREFACE + frame(FrameKind.SETTINGS, 0, 0))
            kind = _exactly(wire, _FRAME_HEAD)[3]
    except OSError as error:
        return _silent(address, error)
    if kind != FrameKind.SETTINGS:
        return problem(Check.DOOR, f"{address} does not speak gRPC", "find out which process listens there")
    return ok(Check.DOOR, f"{address} speaks gRPC{' and TLS' if tls else ''}")


def _silent(address: str, error: Exception) -> Finding:
    return problem(
        Check.DOOR,
        f"{address} does not answer like a door: {error or type(error).__name__}",
        "start the door, or find out why it cannot be reached from here",
    )


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host.strip("[]") or "localhost", int(port)), _ANSWER_S)


def _encrypted(plain: socket.socket) -> ssl.SSLSocket:
    # The certificate is not verified: clients have the authority's certificate, and this machine may not.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(plain)


def _exactly(wire: socket.socket, length: int) -> bytes:
    found = b""
    while len(found) < length:
        part = wire.recv(length - len(found))
        if not part:
            raise ConnectionError("it closed the connection")
        found += part
    return found
