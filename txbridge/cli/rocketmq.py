"""`txbridge rocketmq`: the front door for RocketMQ clients."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from txbridge.cli.options import ClusterOptions, spread
from txbridge.cli.service import serve
from txbridge.config.sources import DOOR_PREFIX
from txbridge.errors import needs


def _option(variable: str, text: str, *flags: str, **more: Any) -> Any:
    """An option, and its variable, which compose files and manifests set."""
    return typer.Option(*flags, envvar=DOOR_PREFIX + variable, help=text, **more)


@dataclass(frozen=True, slots=True)
class DoorPlace:
    """Addresses, files and rights of a front door. `txbridge doctor --door` takes the same options."""

    listen: Annotated[str, _option("LISTEN", "Where RocketMQ clients connect.", metavar="HOST:PORT")] = "127.0.0.1:9876"
    advertised: Annotated[
        str,
        _option(
            "ADVERTISED",
            "The addresses of all doors, as clients reach them. Default: that of --listen.",
            metavar="HOST:PORT,...",
        ),
    ] = ""
    grpc_listen: Annotated[
        str,
        _option("GRPC_LISTEN", "Where RocketMQ 5 clients connect with gRPC. Default: not at all.", metavar="HOST:PORT"),
    ] = ""
    secret_file: Annotated[
        Path | None,
        _option(
            "SECRET_FILE",
            "The secret of the deployment, 32 characters or more; or TXBRIDGE_ROCKETMQ_SECRET.",
            metavar="FILE",
        ),
    ] = None
    access_keys: Annotated[
        Path | None,
        _option(
            "ACCESS_KEYS",
            "A TOML file with the AccessKeys that clients must sign with. Default: clients need no key.",
            metavar="FILE",
        ),
    ] = None
    tls_certificate: Annotated[Path | None, _option("TLS_CERTIFICATE", "PEM, for TLS.", metavar="FILE")] = None
    tls_key: Annotated[Path | None, _option("TLS_KEY", "PEM, its private key.", metavar="FILE")] = None
    auto_create_topics: Annotated[
        int,
        _option(
            "AUTO_CREATE_TOPICS",
            "For test environments: create any topic that a client names, with N partitions; 0 is none.",
            metavar="N",
            min=0,
            max=10_000,
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class DoorLoad:
    """What a front door serves beside its addresses, and how much of it."""

    old_port: Annotated[bool, _option("OLD_PORT", "Also listen two ports below, for clients up to RocketMQ 4.4.")] = (
        False
    )
    metrics_port: Annotated[
        int,
        _option("METRICS_PORT", "Port for /metrics, /livez and /readyz; 0 is none.", metavar="N", min=0, max=65_535),
    ] = 0
    metrics_host: Annotated[str, _option("METRICS_HOST", "Address on which that port listens.", metavar="ADDRESS")] = (
        "127.0.0.1"
    )
    memory_mib: Annotated[
        int,
        _option("MEMORY", "MiB of requests that are read or answered at a time.", "--memory", metavar="MIB", min=32),
    ] = 256
    max_connections: Annotated[int, _option("MAX_CONNECTIONS", "Connections of clients.", min=1)] = 5_000
    max_groups: Annotated[int, _option("MAX_GROUPS", "Producer groups whose checks this door reads.", min=1)] = 500


@spread
def rocketmq(cluster: ClusterOptions, place: DoorPlace, load: DoorLoad) -> None:
    """Run a front door: unmodified RocketMQ producers send transactional messages into Kafka through it.

    Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop it: it answers its open requests and leaves its groups. Exit
    code 0: stopped by a signal; 2: it cannot run.
    """
    with needs("rocketmq", "the front door needs structlog, prometheus-client and hpack"):
        from txbridge_rocketmq.door_options import door_options  # noqa: PLC0415
        from txbridge_rocketmq.door_process import run  # noqa: PLC0415

    settings = cluster.load_settings()
    options = door_options(place)
    serve(settings, lambda: run(settings, options, load))
