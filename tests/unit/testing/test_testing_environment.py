"""The configuration of a sandbox's workers."""

from __future__ import annotations

from txbridge.config.sources import load_settings
from txbridge.testing.backends import environment


def test_variables_of_the_service_under_test_do_not_reach_the_workers_of_a_sandbox():
    services = {
        "TXBRIDGE_BOOTSTRAP_SERVERS": "production:9092",
        "TXBRIDGE_CONFIG": "/etc/service/txbridge.toml",
        "TXBRIDGE_KAFKA": '{"security.protocol": "ssl"}',
        "TXBRIDGE_METRICS_PORT": "9464",
        "TXBRIDGE_NAMESPACE": "production",
    }
    given = environment({"bootstrap_servers": "127.0.0.1:1", "transaction_timeout": "1000"})
    settings = load_settings({}, environ={**services, **given})
    assert settings.bootstrap_servers == "127.0.0.1:1"
    assert settings.transaction_timeout == 1_000
    assert settings.log_format == "json"
    assert (settings.namespace, settings.metrics_port, settings.kafka) == ("", 0, {})
