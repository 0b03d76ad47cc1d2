"""The ledger as a Delta Lake table has the rows of the ledger as Parquet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.audit_log import ENVIRONMENT
from txbridge.embedded import EmbeddedKafka


# A long test, because it starts a Spark of its own and fetches jars the first time.
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(3_600)
def test_a_table_of_delta_lake_has_the_rows_of_the_parquet_files(kafka: EmbeddedKafka, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.delta_ledger", kafka.bootstrap_servers, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout)
    assert told["as_parquet"]
    assert told["rows"] > 800
    assert told["operations"] == ["WRITE"]
    assert "there is a ledger in" in told["refused"]
