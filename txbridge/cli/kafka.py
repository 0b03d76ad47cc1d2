"""`txbridge kafka`: run the embedded Kafka from a terminal."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path
from typing import Annotated

import typer

from txbridge.cli.options import Format, OutputFormat
from txbridge.embedded.config import SUPERUSER, JvmProfile
from txbridge.embedded.datadir import DataDir, find_folders
from txbridge.embedded.jars import KAFKA_VERSION, KAFKA_VERSIONS, JarCache, default_data_dir, locked_version
from txbridge.embedded.java import describe_failure, read_tail
from txbridge.embedded.node import START_TIMEOUT_S, STOP_TIMEOUT_S, is_ready
from txbridge.embedded.process import BrokerState, StoredBroker, read_state, remove_state, running_broker, stop_together
from txbridge.embedded.server import EmbeddedKafka
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.interrupts import EXIT_INTERRUPTED, hand_over

app = typer.Typer(
    help="A real Apache Kafka on this machine, one node or several, for development, tests and demos.",
    no_args_is_help=True,
)

#: Kafka's usual port, so that the defaults of other tools fit.
DEFAULT_PORT = 9092

# Exit codes of a broker that ended because somebody asked it to: by itself, SIGINT, SIGTERM.
_ASKED_TO_END = (0, 130, 143)

SecurePort = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Listen here, too, with TLS, SASL (SCRAM-SHA-512) and ACLs; 0 picks a free port. One broker."
    ),
]
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of the broker. Default: txbridge/kafka in the user's data folder."),
]


@app.command()
def start(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1; 0 picks a free one.")] = DEFAULT_PORT,
    secure_port: SecurePort = None,
    data_dir: DataDirOption = None,
    brokers: Annotated[
        int, typer.Option(help="1, or 3 and more: a cluster with replication factor 3 and min.insync.replicas 2.")
    ] = 1,
    kafka_version: Annotated[str, typer.Option(help=f"Release of Kafka: {', '.join(KAFKA_VERSIONS)}.")] = KAFKA_VERSION,
    detach: Annotated[bool, typer.Option("--detach", help="Return when it is ready; it runs until `stop`.")] = False,
    refetch: Annotated[
        bool, typer.Option("--refetch", help="Download Kafka's jars again, if the cache is damaged.")
    ] = False,
    broker_config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A setting of the brokers; may be repeated.")
    ] = None,
    heap: Annotated[
        str | None, typer.Option(help="Largest heap of each JVM. Default: 512m, and 256m with several brokers.")
    ] = None,
    jvm_profile: Annotated[
        JvmProfile, typer.Option(help="fast-start for tests, throughput for measurements.")
    ] = "fast-start",
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="Wait so long until it answers.")] = START_TIMEOUT_S,
) -> None:
    """Start Kafka: in the foreground until Ctrl-C, or with --detach in the background until `stop`."""
    kafka = EmbeddedKafka(
        port=port or None,
        data_dir=data_dir or default_data_dir(),
        config=parse_settings(broker_config or []),
        heap=heap,
        brokers=brokers,
        kafka_version=kafka_version,
        jvm_profile=jvm_profile,
        secure_port=secure_port,
    )
    if refetch:
        JarCache(version=locked_version(kafka_version)).ensure_jars(refetch=True)
    # A closed terminal and `kill` stop the broker as cleanly as Ctrl-C does.
    hand_over(signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        kafka.start(timeout, may_detach=detach)
        if secure_port is not None:
            say_secure(kafka)
        if detach:
            where = f" --data-dir {shlex.quote(str(data_dir))}" if data_dir else ""
            _say_ready(kafka, f"Stop it with `txbridge kafka stop{where}`")
            kafka.detach()
            return
        _say_ready(kafka, "Ctrl-C stops it")
        wait_for_end(kafka)
    except KeyboardInterrupt:
        was_ready = kafka.is_running()
        kafka.stop()
        typer.echo("Kafka is stopped.", err=True)
        raise typer.Exit(0 if was_ready else EXIT_INTERRUPTED) from None


@app.command()
def stop(
    data_dir: DataDirOption = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time to stop cleanly before it is killed.")
    ] = STOP_TIMEOUT_S,
) -> None:
    """Stop the brokers of a data folder, and return when they have ended. It is not an error if none runs."""
    folder = _folder(data_dir)
    brokers = [StoredBroker(one, state) for one in find_folders(folder) if (state := running_broker(one)) is not None]
    stop_together(brokers, timeout)
    for one in find_folders(folder):
        remove_state(one)
    if not brokers:
        typer.echo(f"No Kafka is running on {folder}.")
        return
    addresses = ",".join(one.state.bootstrap_servers for one in brokers)
    typer.echo(f"Stopped Kafka on {addresses} ({_name_processes([one.state.pid for one in brokers])}).")


@app.command()
def status(data_dir: DataDirOption = None, output_format: OutputFormat = Format.TABLE) -> None:
    """Show whether the brokers of a data folder run. Exit code 0 if all of them do, 1 if not."""
    folder = _folder(data_dir)
    if any(one != folder for one in find_folders(folder)):
        _cluster_status(folder, output_format)
        return
    state = read_state(folder)
    running = state is not None and state.is_alive()
    report = describe(folder, state if running else None)
    if output_format is Format.JSON:
        typer.echo(json.dumps(report, indent=2))
    else:
        for name, value in report.items():
            typer.echo(f"{name.replace('_', ' '):<18} {_in_words(value)}")
        if state is not None and not running:
            typer.echo(f"(the last broker, process {state.pid}, ended without being stopped)")
    if not running:
        raise typer.Exit(1)


def parse_settings(pairs: list[str]) -> dict[str, str]:
    settings = {}
    for pair in pairs:
        name, separator, value = pair.partition("=")
        if not separator or not name.strip():
            # Not repeated: it may be a password.
            raise UsageError("--broker-config takes NAME=VALUE, as in log.retention.ms=60000")
        settings[name.strip()] = value.strip()
    return settings


def describe(folder: Path, state: BrokerState | None) -> dict[str, str | int | bool | None]:
    """The report of `status`, in this order. `state` is that of a running broker, or None."""
    return {
        "running": state is not None,
        # A paused or hung broker runs and does not answer.
        "answers": state is not None and is_ready(state.port, state.cluster_id),
        **{key: getattr(state, key, None) for key in ("bootstrap_servers", "pid", "version", "cluster_id", "detached")},
        "data_dir": str(folder),
        "log_file": str(DataDir(folder).server_log),
    }


def _cluster_status(folder: Path, output_format: Format) -> None:
    nodes = {one.name: describe(one, running_broker(one)) for one in find_folders(folder)}
    running = all(node["running"] for node in nodes.values())
    if output_format is Format.JSON:
        typer.echo(json.dumps({"running": running, "data_dir": str(folder), "nodes": nodes}, indent=2))
    else:
        for name, node in nodes.items():
            where = f"on {node['bootstrap_servers']}, " if node["bootstrap_servers"] else ""
            answers = "answers" if node["answers"] else "does not answer"
            how = f"{where}process {node['pid']}, {answers}" if node["running"] else "does not run"
            typer.echo(f"{name:<14} {how}, log in {node['log_file']}")
    if not running:
        raise typer.Exit(1)


def _in_words(value: str | int | bool | None) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


def _folder(data_dir: Path | None) -> Path:
    return (data_dir or default_data_dir()).expanduser().absolute()


def _name_processes(pids: list[int]) -> str:
    return f"process{'es' if len(pids) > 1 else ''} {', '.join(map(str, pids))}"


def _say_ready(kafka: EmbeddedKafka, how_to_stop: str) -> None:
    processes = _name_processes([node.pid for node in kafka.brokers])
    typer.echo(
        f"Kafka {kafka.version} is ready on {kafka.bootstrap_servers} ({processes}, data in {kafka.data_dir}). "
        f"{how_to_stop}."
    )


def say_secure(kafka: EmbeddedKafka) -> None:
    """Say where the secure listener is, and whose settings it takes."""
    secure = kafka.secure
    typer.echo(
        f"With TLS and SASL it is on {secure.bootstrap_servers}; the settings of the user {SUPERUSER}, who may do "
        f"everything, are in {secure.settings_file}"
    )


def wait_for_end(kafka: EmbeddedKafka) -> None:
    """Wait until Kafka has ended; EnvironmentProblemError if nobody stopped it."""
    log, code = kafka.log_file, kafka.wait()
    kafka.stop()  # the process has ended; this removes its state file
    if code not in _ASKED_TO_END:
        raise EnvironmentProblemError(describe_failure(f"Kafka ended with exit code {code}", read_tail(log), log))
    typer.echo("Kafka was stopped.", err=True)
