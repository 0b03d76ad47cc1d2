"""A front door for RocketMQ clients, which writes their messages to Kafka.

`txbridge rocketmq` runs it. The modules `codes`, `command`, `message`, `identity` and `requests` have no I/O and no
clock.
"""
