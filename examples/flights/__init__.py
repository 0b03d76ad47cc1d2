"""The demo: 336,776 real flights through a real Kafka. `txbridge demo` runs it."""
