"""`txbridge demo`: the example examples/flights, which is not part of the installed package."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import typer

from txbridge.cli.terminal import console
from txbridge.errors import LocalProblemError, UsageError
from txbridge.extras import needs
from txbridge.interrupts import EXIT_INTERRUPTED, hand_over

#: Folder of the examples below the environment of txbridge. compose/demo.Dockerfile copies them there.
INSTALLED_EXAMPLES = Path("share", "txbridge", "examples")
#: A file that every demo leaves in its folder.
_OF_A_DEMO = "flights.sqlite"
_EXAMPLES = (Path(__file__).resolve().parents[2] / "examples", Path(sys.prefix) / INSTALLED_EXAMPLES)


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
