"""librdkafka's security properties as Faust's credentials: Faust's consumer is aiokafka, which has names of its own."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import faust

from txbridge.errors import UsageError

_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


def credentials(kafka: Mapping[str, Any]) -> Any:
    """Credentials for `faust.App`, or None for a plain connection. Raises UsageError for what Faust can not do."""
    protocol = str(kafka.get("security.protocol", "plaintext")).upper()
    if protocol == "PLAINTEXT":
        return None
    context = _ssl_context(kafka) if protocol in {"SSL", "SASL_SSL"} else None
    if protocol == "SSL":
        return faust.SSLCredentials(context=context)
    if protocol not in {"SASL_PLAINTEXT", "SASL_SSL"}:
        raise UsageError(f"security.protocol {protocol!r} is not one of PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL")
    mechanism = str(kafka.get("sasl.mechanism") or kafka.get("sasl.mechanisms") or "").upper()
    if mechanism not in _MECHANISMS:
        raise UsageError(
            f"sasl.mechanism {mechanism!r} can not be used by a worker; use one of {', '.join(_MECHANISMS)}"
        )
    return faust.SASLCredentials(
        username=str(kafka.get("sasl.username", "")),
        password=str(kafka.get("sasl.password", "")),
        mechanism=mechanism,
        ssl_context=context,
    )


def _ssl_context(kafka: Mapping[str, Any]) -> ssl.SSLContext:
    """The same trust and key as librdkafka's properties say. Raises UsageError when a file can not be used."""
    try:
        context = ssl.create_default_context(cafile=kafka.get("ssl.ca.location"), cadata=kafka.get("ssl.ca.pem"))
        if certificate := kafka.get("ssl.certificate.location"):
            context.load_cert_chain(certificate, kafka.get("ssl.key.location"), kafka.get("ssl.key.password"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the TLS files of ssl.ca.location, ssl.certificate.location or ssl.key.location: {error}"
        ) from None
    if str(kafka.get("ssl.endpoint.identification.algorithm", "https")).lower() == "none":
        context.check_hostname = False
    if str(kafka.get("enable.ssl.certificate.verification", "true")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
