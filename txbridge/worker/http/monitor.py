"""Monitor of a worker process: its metrics, its health, and the port that serves both."""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from http import HTTPStatus
from importlib.resources import files

from prometheus_client import disable_created_metrics

from txbridge.config.worker import WorkerSettings
from txbridge.errors import UsageError
from txbridge.log import get_logger
from txbridge.web.exchange import PageAnswer
from txbridge.web.web_server import Page, WebServer
from txbridge.worker.faust.settings import longest_join_s
from txbridge.worker.http.health import Health
from txbridge.worker.http.status import StatusBoard
from txbridge.worker.observe.metrics import WorkerMetrics

_log = get_logger("txbridge.worker")


class Monitor:
    """The only one of a process: it stays the same when Faust is started again."""

    def __init__(self, settings: WorkerSettings) -> None:
        """Raises UsageError for a status page that no port serves. Other commands may share the file of options."""
        if settings.status_page != "off" and not settings.metrics_port:
            raise UsageError("status_page needs a metrics_port: that port serves it")
        self._settings = settings
        self.metrics = WorkerMetrics(settings.metrics_max_groups)
        self.health = Health(
            settings.commit_timeout, longest_join_s(settings.session_timeout), settings.session_timeout
        )
        self._is_started = False

    def start(self) -> None:
        """Watch the worker, and listen if a port was given; does nothing the second time.

        Raises EnvironmentProblemError.
        """
        settings = self._settings
        if self._is_started:
            return
        self._is_started = True
        self.health.start()
        if not settings.metrics_port:
            return
        pages: dict[str, Page] = {}
        if settings.status_page != "off":
            board = StatusBoard(settings, self.metrics, self.health)
            board.start()
            pages = status_pages(board)
        web = WebServer(
            settings.metrics_host,
            settings.metrics_port,
            self.metrics.registry,
            {"/livez": self.health.not_live, "/readyz": self.health.not_ready},
            pages,
        )
        # The start time of each counter would be a second series, and of use to nobody here.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.metrics.watch_partitions(self.health.partition_facts, lambda: not self.health.not_ready())
        web.start()
        _log.info("metrics_served", host=settings.metrics_host, port=web.port)


def status_pages(board: StatusBoard) -> dict[str, Page]:
    """The status page and the requests that it sends, by path. Everything is read; nothing can be changed.

    All addresses in the page are relative, so that it works behind any path prefix.
    """
    html = files("txbridge.worker.http").joinpath("status.html").read_bytes()
    # By its hash: no other script that came into the page would run.
    script = sha256(html.partition(b"<script>")[2].partition(b"</script>")[0])
    allowed = f"'sha256-{b64encode(script.digest()).decode()}'"
    return {
        "/status": lambda _: PageAnswer(HTTPStatus.OK, "text/html; charset=utf-8", html, allowed),
        "/status.json": lambda _: PageAnswer.json(HTTPStatus.OK, board.take_snapshot()),
        "/open.json": lambda request: PageAnswer.json(HTTPStatus.OK, board.list_open(request.query.get("cause", ""))),
    }
