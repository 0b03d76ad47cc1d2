"""Download of the connector for Kafka into a folder, by Spark's Ivy: `python compose/fetch_connector.py FOLDER`."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from txbridge_audit.engines.spark.spark_session import CONNECTOR

folder = Path(sys.argv[1])
# Fetched into a folder beside it and renamed, so that a folder of this name is always complete.
part = folder.with_suffix(".part")
shutil.rmtree(part, ignore_errors=True)
session = (
    SparkSession.builder.master("local[1]")
    .config("spark.jars.packages", CONNECTOR)
    .config("spark.jars.ivy", str(part.absolute()))
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.ui.enabled", "false")
    .getOrCreate()
)
session.stop()
part.replace(folder)
