"""The ledger as a Delta Lake table: steps are merged, and time travel shows what was known earlier."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import txbridge_audit

from txbridge.embedded import EmbeddedKafka

PATHS = os.pathsep.join([str(Path(txbridge_audit.__file__).parents[1]), str(Path.cwd())])


# A long test, because it starts a Spark of its own and fetches jars the first time. The table after two steps must
# equal that of a single audit of everything.
@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(3_600)
def test_steps_are_merged_into_one_table_whose_versions_tell_what_was_known(
    kafka: EmbeddedKafka, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.delta_ledger", kafka.bootstrap_servers, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": PATHS},
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    told = json.loads(done.stdout)
    assert told["as_a_whole"], "after two steps the table is not that of an audit of everything"
    assert told["earlier_as_it_was"]
    assert told["changed_since"] > 0
    assert told["new_since"] > 0
    assert told["operations"] == ["WRITE", "MERGE"]
    assert told["notes"] == ["txbridge audit, step 1", "txbridge audit, step 2"]
    assert told["steps"] == ["1", "2"]
    assert "is a Delta Lake table: continue it with --ledger-format delta" in told["refused"]
