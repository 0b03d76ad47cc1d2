"""A DAG for Airflow that audits every hour, and reads only what is new (docs/audit-ledger.md)."""

import subprocess
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, task
from airflow.sdk.exceptions import AirflowFailException

FOLDER = "/var/lib/txbridge-audit"
AUDIT = [
    "/opt/txbridge/bin/txbridge",
    "audit",
    "--config",
    "/etc/txbridge/audit.toml",
    "--ledger",
    f"{FOLDER}/ledger",
    "--continue",
    "--accept",
    "/opt/airflow/dags/accepted.csv",
    "--report",
    f"{FOLDER}/report.json",
    "--csv",
    f"{FOLDER}/report.csv",
]


@dag(schedule="@hourly", start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, max_active_runs=1)
def txbridge_audit():
    @task(retries=3, retry_delay=timedelta(minutes=5), execution_timeout=timedelta(minutes=50))
    def audit():
        code = subprocess.run(AUDIT, check=False).returncode
        if code == 1:
            raise AirflowFailException(f"violations: the log and {FOLDER}/report.csv have the evidence")
        if code:
            raise RuntimeError(f"could not audit (exit code {code}): the log says why")

    audit()


txbridge_audit()
