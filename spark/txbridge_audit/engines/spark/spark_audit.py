"""One audit by Spark, in a session of its own or in the one that is given."""

from __future__ import annotations

from pyspark.sql import SparkSession

from txbridge_audit.cluster.plan import Plan
from txbridge_audit.engines.gather import AuditedTopics
from txbridge_audit.engines.local.run import until_leaders_stay
from txbridge_audit.engines.spark import judging, ledger
from txbridge_audit.engines.spark.spark_session import elections, spark_session
from txbridge_audit.report.model import AuditReport


def spark_audit(
    source: AuditedTopics,
    plan: Plan,
    *,
    spark: SparkSession | None,
    ledger_path: str | None,
    with_overview: bool,
) -> AuditReport:
    """See `txbridge_audit.audit.run_audit`."""
    with spark_session(spark, source.say) as session:
        if ledger_path is not None:
            ledger.refuse_existing(session, ledger_path)

        def attempt() -> AuditReport:
            with elections():
                return judging.audit(
                    *(session, source, plan),
                    ledger_path=ledger_path,
                    with_overview=with_overview,
                )

        report = until_leaders_stay(source.say, attempt)
        if ledger_path is not None:
            ledger.write_summary(session, report.to_json(), ledger_path)
    return report
