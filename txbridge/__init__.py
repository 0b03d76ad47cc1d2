"""RocketMQ-style transactional messages on Apache Kafka."""
