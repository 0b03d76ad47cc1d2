"""The judge: `judge(transaction, facts) -> Verdict`, and one table of rules. No Spark, no Kafka, no clock."""
