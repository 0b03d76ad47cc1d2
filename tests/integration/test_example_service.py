"""The example of docs/testing-your-service.md, run as its readers do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long
def test_the_orders_example_passes_where_no_docker_daemon_answers(tmp_path: Path):
    """Without options it takes the embedded Kafka. A connection that Docker's client leaves open is an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT / "examples" / "orders",
        env={**environment, "DOCKER_HOST": f"unix://{tmp_path}/none.sock"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout
