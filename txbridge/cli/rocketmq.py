"""`txbridge rocketmq`: the front door for RocketMQ clients."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from txbridge.cli.options import ClusterOptions, spread
from txbridge.extras import needs
from txbridge.interrupts import end_at_hangup
from txbridge.subject import about


@dataclass(frozen=True, slots=True)
class DoorPlace:
    """Addresses and files of a front door. `txbridge doctor --door` takes the same options."""

    listen: Annotated[
        str,
        typer.Option(metavar="HOST:PORT", envvar="TXBRIDGE_ROCKETMQ_LISTEN", help="Where RocketMQ clients connect."),
    ] = "127.0.0.1:9876"
    advertised: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            envvar="TXBRIDGE_ROCKETMQ_ADVERTISED",
            help="The addresses of all doors, as clients reach them. Default: that of --listen.",
        ),
    ] = ""
    grpc_listen: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            envvar="TXBRIDGE_ROCKETMQ_GRPC_LISTEN",
            help="Where RocketMQ 5 clients connect with gRPC. Default: not at all.",
        ),
    ] = ""
    grpc_advertised: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT,...",
            envvar="TXBRIDGE_ROCKETMQ_GRPC_ADVERTISED",
            help="The gRPC addresses of all doors, as clients reach them. Default: that of --grpc-listen.",
        ),
    ] = ""
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="TXBRIDGE_ROCKETMQ_SECRET_FILE",
            help="The secret of the deployment, 32 characters or more; or TXBRIDGE_ROCKETMQ_SECRET.",
        ),
    ] = None
    access_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="TXBRIDGE_ROCKETMQ_ACCESS_KEYS",
            help="A TOML file with the AccessKeys that clients must sign with. Default: clients need no key.",
        ),
    ] = None
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="TXBRIDGE_ROCKETMQ_TLS_CERTIFICATE", help="PEM, for TLS.")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", envvar="TXBRIDGE_ROCKETMQ_TLS_KEY", help="PEM, its private key.")
    ] = None


@dataclass(frozen=True, slots=True)
class DoorLoad:
    """What a front door serves beside its addresses, and how much of it."""

    old_port: Annotated[
        bool,
        typer.Option(
            envvar="TXBRIDGE_ROCKETMQ_OLD_PORT", help="Listen two ports below as well, for clients up to RocketMQ 4.4."
        ),
    ] = False
    metrics_port: Annotated[
        int,
        typer.Option(
            envvar="TXBRIDGE_ROCKETMQ_METRICS_PORT",
            min=0,
            max=65_535,
            help="Port for /metrics, /livez and /readyz; 0 is none.",
        ),
    ] = 0
    metrics_host: Annotated[
        str, typer.Option(envvar="TXBRIDGE_ROCKETMQ_METRICS_HOST", help="Address on which that port listens.")
    ] = "127.0.0.1"
    memory_mib: Annotated[
        int,
        typer.Option(
            "--memory",
            envvar="TXBRIDGE_ROCKETMQ_MEMORY",
            min=32,
            help="MiB of requests that are read or answered at a time.",
        ),
    ] = 256
    max_connections: Annotated[
        int, typer.Option(envvar="TXBRIDGE_ROCKETMQ_MAX_CONNECTIONS", min=1, help="Connections of clients.")
    ] = 5_000
    max_groups: Annotated[
        int,
        typer.Option(
            envvar="TXBRIDGE_ROCKETMQ_MAX_GROUPS", min=1, help="Producer groups whose checks this door reads."
        ),
    ] = 500


@spread
def rocketmq(cluster: ClusterOptions, place: DoorPlace, load: DoorLoad) -> None:
    """Run a front door: unmodified RocketMQ producers send transactional messages into Kafka through it.

    Ctrl-C, SIGTERM and SIGHUP (not under nohup) stop it: it answers its open requests and leaves its groups. Exit
    code 0: stopped by a signal; 2: it cannot run.
    """
    end_at_hangup()
    with needs("rocketmq", "the front door needs structlog, prometheus-client and grpcio"):
        from txbridge_rocketmq.door_options import door_options  # noqa: PLC0415
        from txbridge_rocketmq.door_process import run  # noqa: PLC0415

        from txbridge import log  # noqa: PLC0415

    settings = cluster.load_settings()
    options = door_options(**asdict(place), **asdict(load))
    log.configure(settings.log_format, settings.log_level)
    with about(settings):
        run(settings, options)
