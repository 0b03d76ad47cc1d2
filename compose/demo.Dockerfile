# The worker's image with the demonstration and the audit, which needs Java. `make images` builds it, after the worker's.
ARG WORKER_IMAGE

FROM python:3.11-slim AS packages
COPY wheels /wheels
RUN python -m venv --without-pip /opt/txbridge \
 && python -m venv /opt/installer \
 && /opt/installer/bin/pip --python /opt/txbridge/bin/python install --quiet --no-index --no-deps --no-compile /wheels/*.whl

FROM eclipse-temurin:17-jre AS java

FROM ${WORKER_IMAGE}
LABEL org.opencontainers.image.title="txbridge demonstration and audit"
COPY --from=java /opt/java/openjdk /opt/java/openjdk
COPY --from=packages /opt/txbridge /opt/txbridge
# `txbridge demo` looks for it below the environment's share/txbridge/examples.
COPY flights /opt/txbridge/share/txbridge/examples/flights
# What Spark's Ivy has fetched: the connector for Kafka.
COPY --chown=10001:10001 ivy /home/txbridge/.ivy2.5.2
ENV JAVA_HOME=/opt/java/openjdk
# Its commands end by themselves.
HEALTHCHECK NONE
CMD ["demo"]
