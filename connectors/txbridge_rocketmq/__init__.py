"""A front door for RocketMQ clients, which writes their messages to Kafka.

`txbridge rocketmq` runs it. The modules `codes`, `command`, `message`, `identity` and `requests` have no I/O and no
clock.
"""

from txbridge.errors import missing_extra

if error := missing_extra(__name__, "rocketmq", "structlog", "prometheus_client", "lz4", "hpack", "rocketmq"):
    raise error
