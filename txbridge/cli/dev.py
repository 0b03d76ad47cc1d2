"""`txbridge dev`: Kafka, the topics and a worker in one terminal, to try txbridge or to develop a service with it."""

from __future__ import annotations

import os
import signal
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated

import typer

from txbridge.cli.kafka import DEFAULT_PORT, DataDirOption, SecurePort, say_secure, wait_for_end
from txbridge.cli.options import Config
from txbridge.cli.terminal import complain
from txbridge.cli.topics import RealTopics, WantedOptions
from txbridge.config.sources import load_settings
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.embedded.paths import default_data_dir
from txbridge.embedded.ports import HOST, is_free, require_free
from txbridge.embedded.server import EmbeddedKafka
from txbridge.errors import EnvironmentProblemError, UsageError
from txbridge.extras import needs
from txbridge.interrupts import EXIT_INTERRUPTED, end_at_hangup, hand_over, if_interrupted, in_own_thread
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.apply import apply
from txbridge.topics.plan import TopicAction

#: The usual port for metrics.
DEFAULT_METRICS_PORT = 9464
#: Exit code when Kafka ends before the command does.
EXIT_KAFKA_ENDED = 2
# Seconds between two requests to /readyz. A worker serves some seconds after its start.
_READY_POLL_S = 0.2


def dev(
    real_topic: RealTopics = None,
    port: Annotated[int, typer.Option(help="Kafka's port on 127.0.0.1; 0 finds a free one.")] = DEFAULT_PORT,
    secure_port: SecurePort = None,
    metrics_port: Annotated[
        int, typer.Option(metavar="N", help="The worker's port for metrics and the status page; 0 for none.")
    ] = DEFAULT_METRICS_PORT,
    data_dir: DataDirOption = None,
    config: Config = None,
) -> None:
    """Start Kafka, create the topics and run a worker, all in this terminal until Ctrl-C. The data are kept.

    Exit code 0: stopped by Ctrl-C; 130: interrupted before the worker ran; 2: it cannot run, or Kafka has ended.
    """
    with needs("worker", "a worker runs on Faust"):
        from txbridge import log  # noqa: PLC0415 - Faust takes seconds to import
        from txbridge.worker.app import run  # noqa: PLC0415
    folder = (data_dir or default_data_dir()).expanduser().absolute()
    # Before Kafka's jars are fetched.
    if port:
        require_free(port)
    if metrics_port and not is_free(metrics_port):
        raise EnvironmentProblemError(
            f"port {metrics_port} on {HOST} is taken. Choose another with --metrics-port (0 for none)"
        )
    kafka = EmbeddedKafka(port=port or None, data_dir=folder, secure_port=secure_port)
    hand_over(signal.default_int_handler)
    end_at_hangup()
    must_run = threading.Event()
    try:
        # The last act is for a signal between Kafka's start and Faust's.
        with kafka, if_interrupted(kafka.stop):
            must_run.set()
            typer.echo(f"Kafka {kafka.version} runs on {kafka.bootstrap_servers}. Its data are in {folder}")
            if secure_port is not None:
                say_secure(kafka)
            settings = _settings_of(kafka, metrics_port, config)
            log.configure(settings.log_format, settings.log_level)
            in_own_thread(lambda: _create_topics(settings, real_topic))
            threading.Thread(target=_watch, args=[kafka, settings, must_run], name="txbridge-dev", daemon=True).start()
            try:
                run(settings)
            finally:
                must_run.clear()
                typer.echo(f"Ended. The data are kept in {folder}")
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _settings_of(kafka: EmbeddedKafka, metrics_port: int, config: Path | None) -> WorkerSettings:
    flags = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "metrics_port": metrics_port,
        "metrics_host": HOST,
        "status_page": "read" if metrics_port else None,
        "log_format": "console",
    }
    # What this terminal shows besides its own lines is what needs attention.
    level = None if config or os.environ.get("TXBRIDGE_LOG_LEVEL") else "warning"
    return load_settings({**flags, "log_level": level}, config)


def _create_topics(settings: WorkerSettings, real_topic: list[str] | None) -> None:
    options = WantedOptions(real_topic=real_topic).plan_options(settings)
    plans = apply(KafkaCluster.connect(settings.librdkafka), Names(settings.namespace), options)
    refused = [f"{one.topic}: {'; '.join(one.reasons)}" for one in plans if one.action is TopicAction.REFUSED]
    if refused:
        raise UsageError("\n".join(refused))
    real = f"{', '.join(one.name for one in options.real_topics)} and " if options.real_topics else ""
    typer.echo(f"Topics: {real}the internal ones")


def _watch(kafka: EmbeddedKafka, settings: WorkerSettings, must_run: threading.Event) -> None:
    """Say when the worker serves, and end everything if Kafka ends."""
    if settings.metrics_port:
        while not _is_ready(settings.metrics_port):
            time.sleep(_READY_POLL_S)
        page = f"http://{HOST}:{settings.metrics_port}"
        typer.echo(f"The worker serves. Its metrics are on {page}/metrics, its open messages on {page}/status")
    typer.echo("Run your program in another terminal. Ctrl-C stops everything here; the data are kept")
    kafka.wait()
    if must_run.is_set():
        # At once: a worker that ends properly would wait for Kafka.
        try:
            wait_for_end(kafka)
        except EnvironmentProblemError as error:
            complain(f"error: {error}")
        os._exit(EXIT_KAFKA_ENDED)


def _is_ready(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=1)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
