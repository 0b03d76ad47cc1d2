"""`txbridge dev` with a port that is taken; tests/integration/test_readme.py runs it."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from txbridge.cli.dev import dev
from txbridge.embedded.ports import HOST, free_port
from txbridge.errors import EnvironmentProblemError


@pytest.mark.parametrize(("option", "flag"), [("port", "--port"), ("metrics_port", "--metrics-port")])
def test_a_taken_port_is_named_before_anything_starts(tmp_path, option, flag):
    with closing(socket.create_server((HOST, 0))) as other:
        taken = other.getsockname()[1]
        ports = {"port": free_port(), "metrics_port": free_port(), option: taken}
        with pytest.raises(
            EnvironmentProblemError, match=f"^port {taken} on {HOST} is taken. Choose another with {flag} "
        ):
            dev(data_dir=tmp_path / "data", **ports)
    assert list(tmp_path.iterdir()) == []
