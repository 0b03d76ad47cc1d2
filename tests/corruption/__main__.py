"""Planted corruption: `python -m tests.corruption` writes topics with known content, audits them and compares.

It prints the corruption matrix. The exit code is 1 when the audit missed something planted, or reported anything else.
"""

from __future__ import annotations

import argparse
import sys
import time

from txbridge_audit import run_audit
from txbridge_audit.audit import AuditEngine

from tests.corruption.matrix import compare, table
from tests.corruption.writer import Writer
from txbridge.embedded import EmbeddedKafka


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.corruption", description=__doc__)
    parser.add_argument("--transactions", type=int, default=1_000_000, help="how many (default 1,000,000)")
    parser.add_argument("--each", type=int, default=200, help="of every kind that is not plain (default 200)")
    parser.add_argument("--engine", type=AuditEngine, choices=list(AuditEngine), help="by default what suits the size")
    parser.add_argument("--seed", type=int, default=1, help="where they are planted (default 1)")
    options = parser.parse_args()
    with EmbeddedKafka(jvm_profile="throughput", heap="2g") as kafka:
        started = time.monotonic()
        writer = Writer(kafka.bootstrap_servers, f"seed{options.seed}", options.seed)
        writer.plant(options.transactions, options.each)
        print(f"planted in {time.monotonic() - started:.0f} s", flush=True)
        report = run_audit(
            kafka.bootstrap_servers, namespace=writer.names.namespace, engine=options.engine, progress=print
        )
    lines = compare(writer.truth, report)
    print(table(lines))
    print(f"{report.transactions:,} transactions audited in {report.seconds:.0f} s, seed {options.seed}")
    return 0 if all(line.right for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
