"""`txbridge dev` and `txbridge demo`: Kafka, topics and a worker in one terminal, and the example examples/flights."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Annotated

import typer

from txbridge.cli.kafka import DEFAULT_PORT, DataDirOption, SecurePort, say_secure, wait_for_end
from txbridge.cli.options import Config
from txbridge.cli.terminal import complain, console
from txbridge.cli.topics import RealTopics, WantedOptions
from txbridge.config.sources import load_settings
from txbridge.config.worker import WorkerSettings
from txbridge.core.names import Names
from txbridge.embedded.jars import default_data_dir
from txbridge.embedded.ports import HOST, is_free, require_free
from txbridge.embedded.server import EmbeddedKafka
from txbridge.errors import EnvironmentProblemError, LocalProblemError, UsageError, needs
from txbridge.interrupts import EXIT_INTERRUPTED, end_at_hangup, hand_over, if_interrupted, in_own_thread
from txbridge.kafka.admin import KafkaCluster
from txbridge.topics.plan import TopicAction
from txbridge.topics.verify import apply

#: The usual port for metrics.
DEFAULT_METRICS_PORT = 9464
#: Exit code when Kafka ends before the command does.
EXIT_KAFKA_ENDED = 2
# Seconds between two requests to /readyz. A worker serves some seconds after its start.
_READY_POLL_S = 0.2
#: Folder of the examples below the environment of txbridge. compose/demo.Dockerfile copies them there.
INSTALLED_EXAMPLES = Path("share", "txbridge", "examples")
#: A file that every demo leaves in its folder.
_OF_A_DEMO = "flights.sqlite"
_EXAMPLES = (Path(__file__).resolve().parents[2] / "examples", Path(sys.prefix) / INSTALLED_EXAMPLES)


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


def demo(
    flights: int | None = typer.Option(None, metavar="N", min=1, help="Number of flights; default: all 336,776."),
    bootstrap_servers: str | None = typer.Option(
        None,
        metavar="HOST:PORT,...",
        help="Your own cluster with topics and workers, used by nothing else. Default: the demo starts its own.",
    ),
    folder: Path = typer.Option(
        Path("build/demo"), metavar="FOLDER", help="Where everything is written; that of an earlier demo is emptied."
    ),
    *,
    yes: bool = typer.Option(False, "--yes", help="Empty --folder, whatever is in it."),
) -> None:
    """Real flights through a real Kafka: prepare, decide, check back, kill a worker, deliver once, audit.

    Exit code 0 only when the audit is clean and every count is the expected one.
    """
    examples = next((folder for folder in _EXAMPLES if (folder / "flights" / "run.py").is_file()), None)
    if examples is None:
        raise LocalProblemError(
            "the demo is not part of the installed package: clone the repository of txbridge, and run `make demo` there"
        )
    if not yes and folder.is_dir() and any(folder.iterdir()) and not (folder / _OF_A_DEMO).exists():
        raise UsageError(f"{folder} holds something else than a demo: name another --folder, or empty it with --yes")
    sys.path.insert(0, str(examples))
    # This loads PySpark, Faust's settings and the embedded Kafka, which the other commands do not need.
    with needs("demo", "the demo needs PySpark and its data"):
        demonstration = importlib.import_module("flights.run")

        # SIGTERM ends the demo as Ctrl-C does: with every process that it started.
        hand_over(signal.default_int_handler)
        screen = console()
        try:
            report = demonstration.run_demo(folder, flights, screen, bootstrap_servers)
        except KeyboardInterrupt:
            screen.show_cursor()
            # Python would wait for what the demonstration's own thread is in.
            os._exit(EXIT_INTERRUPTED)
    demonstration.print_summary(report, folder, screen)
    sys.exit(0 if report.clean else 1)
