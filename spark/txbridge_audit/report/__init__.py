"""The report as plain data, and its forms: terminal, page, Prometheus, Parquet."""
