"""The process between the nodes of a cluster: what is said when it does not start or has ended, and that it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest

from txbridge.embedded import EmbeddedKafka, KafkaStartError, links, server
from txbridge.embedded.datadir import child_environment
from txbridge.embedded.jars import JarCache
from txbridge.embedded.java import Java
from txbridge.embedded.links import Links
from txbridge.embedded.ports import HOST, free_port
from txbridge.errors import EnvironmentProblemError


@pytest.fixture
def running(tmp_path):
    links = Links({1: [(free_port(), free_port())]}, tmp_path, child_environment())
    try:
        links.wait()
        yield links
    finally:
        links.close()


def test_orders_are_confirmed(running):
    running.cut(1)
    running.join(1)


@pytest.mark.parametrize("order", [Links.cut, Links.join])
def test_an_order_to_a_process_that_has_ended_is_not_taken_for_done(running, order, tmp_path):
    os.kill(running._child.pid, signal.SIGKILL)
    assert running._child.wait(60) == 128 + signal.SIGKILL
    with pytest.raises(EnvironmentProblemError, match=r"did not confirm '\w+ 1' .*restart\(\) .*links\.log"):
        order(running, 1)


def test_a_connection_that_ends_without_an_answer_is_not_taken_for_done(running):
    """The process dies while it has the order, or another program has taken its port."""
    with closing(socket.create_server((HOST, 0))) as other:
        running._control_port = other.getsockname()[1]

        def hang_up() -> None:
            with closing(other.accept()[0]) as connection:
                connection.recv(100)

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        with pytest.raises(EnvironmentProblemError, match=r"did not confirm 'cut 1' \(it has ended\)"):
            running.cut(1)
        thread.join(60)


def test_a_port_that_is_taken_meanwhile_is_an_error_of_the_start_with_its_log(tmp_path):
    (tmp_path / "links.log").write_text("OSError: of an earlier start\n")
    with closing(socket.create_server((HOST, 0))) as other:
        links = Links({1: [(other.getsockname()[1], free_port())]}, tmp_path, child_environment())
        with pytest.raises(KafkaStartError) as caught:
            links.wait()
    assert caught.value.exit_code == 1
    text = str(caught.value)
    assert "ended with exit code 1 while it was starting" in text
    assert "ddress already in use" in text
    assert "of an earlier start" not in text
    assert text.endswith(f"All of it is in {tmp_path / 'links.log'}")


class Started:
    """A cluster of three without Java: it comes as far as its links."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.links: list[Links] = []
        monkeypatch.setattr(server, "find_java", lambda: Java(Path("/no/java"), 17, "17.0.15", "none"))
        monkeypatch.setattr(JarCache, "ensure", lambda _: None)
        monkeypatch.setattr(server, "Links", self._remember)
        self.kafka = EmbeddedKafka(brokers=3, can_cut_off=True, data_dir=folder, class_data_archive=False)

    def _remember(self, *args) -> Links:
        self.links.append(Links(*args))
        return self.links[-1]


def test_links_that_do_not_open_in_time_end_with_the_failed_start(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "_START_S", 0.0)
    started = Started(tmp_path, monkeypatch)
    with pytest.raises(KafkaStartError, match=re.escape(f"All of it is in {tmp_path / 'links.log'}")):
        started.kafka.start()
    [only] = started.links
    assert only._child.poll() == 128 + signal.SIGKILL


def test_other_ports_are_chosen_when_one_of_the_links_is_lost(tmp_path, monkeypatch):
    """Between the choice of a port and its use another program can take it: the start tries again, three times."""
    with closing(socket.create_server((HOST, 0))) as other:
        monkeypatch.setattr(server.layout, "ways", lambda _: [(other.getsockname()[1], 1)])
        started = Started(tmp_path, monkeypatch)
        with pytest.raises(KafkaStartError, match="ddress already in use"):
            started.kafka.start()
    assert len(started.links) == 3
    assert all(one._child.poll() == 1 for one in started.links)
