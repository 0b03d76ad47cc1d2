"""A front door for RocketMQ clients: what they send becomes transactional messages on Kafka.

`txbridge rocketmq` runs it. The modules from `codes` to `requests` are pure: no I/O and no clock.
"""
