"""Faust's settings for a worker, all of them derived from the worker's own, and a filter of its log lines."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Iterable
from typing import Any

import faust
from faust.auth import OAuthCredentials

from txbridge.config.worker import WorkerSettings
from txbridge.kafka.aiokafka_security import aiokafka_auth

#: Longest time between two heartbeats; Kafka advises a third of the session. By its heartbeat a worker learns that
#: another has left or wants to join. Until then nobody serves the partitions of the other one. With two seconds that
#: was a good part of the pause in a rolling restart. The request is a few dozen bytes.
_LONGEST_HEARTBEAT_S = 0.5
#: Time that each member of the group has to join again. It learns of the rebalance by its heartbeats, within half a
#: second, and joins at once: its owners stop in parallel. The rest is for a machine that stands still.
_REBALANCE_TIMEOUT_S = 15.0
#: Kafka answers a join request once all members have joined, or after the rebalance time-out, or after the session
#: time-out of a dead member. It answers all other requests in milliseconds. So Faust waits this much longer for an
#: answer. It also waits this long for a broker that accepts connections and never answers. Faust's default is 90 s.
_ANSWER_MARGIN_S = 5.0
#: Age at which aiokafka asks for the topics again. By default it is five minutes, in which nobody serves.
_METADATA_AGE_MS = 5_000

#: A line of the same place in the code is logged again after this long.
_EVERY_S = 30.0
_TALKATIVE = ("aiokafka", "faust", "mode", "txbridge.librdkafka")
#: Faust logs under the module of a class that is derived from its own. txbridge logs as `txbridge.worker` itself.
_FAUST_IN_OUR_NAME = "txbridge.worker."


def longest_join_s(session_timeout_ms: int) -> float:
    """Longest time (s) that one attempt to join the group can take."""
    return max(_REBALANCE_TIMEOUT_S, session_timeout_ms / 1_000) + _ANSWER_MARGIN_S


def faust_settings(settings: WorkerSettings) -> dict[str, Any]:
    """Arguments for `faust.App`. Raises UsageError for security properties that Faust's connection cannot use."""
    session_s = settings.session_timeout / 1_000
    return {
        # Faust prefers variables to arguments, and its names have no prefix: APP_VERSION, WEB_PORT, BROKER_URL.
        "env": {},
        # The consumer gets the servers themselves (transport.py): Faust drops the brackets of an address of IPv6.
        "broker": "aiokafka://",
        "broker_credentials": _credentials(settings),
        # Unique in the group: after a fence, an owner finds this process by it in the coordinator's answer.
        "broker_client_id": f"txbridge-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}",
        "broker_session_timeout": session_s,
        "broker_rebalance_timeout": _REBALANCE_TIMEOUT_S,
        "broker_request_timeout": longest_join_s(settings.session_timeout),
        # A member that has got nothing, because a topic was missing for a moment, learns of the topic by this.
        "consumer_metadata_max_age_ms": _METADATA_AGE_MS,
        "broker_heartbeat_interval": min(session_s / 3, _LONGEST_HEARTBEAT_S),
        # Our own Kafka transactions carry exactly-once; Faust's are not atomic across topics.
        "processing_guarantee": "at_least_once",
        # The checkpoint says where to begin: a new group does not need the whole history of END.
        "consumer_auto_offset_reset": "latest",
        # Faust only hands events over, so nothing is lost without this wait. The wait could last forever.
        "stream_wait_empty": False,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_enabled": False,
        "store": "memory://",
        "worker_redirect_stdouts": False,
    }


def _credentials(settings: WorkerSettings) -> Any:
    """Faust's credentials, or None for a plain connection. Faust makes aiokafka's arguments of them again."""
    auth = aiokafka_auth(settings.librdkafka)
    context = auth.get("ssl_context")
    match auth.get("security_protocol"):
        case None:
            return None
        case "SSL":
            return faust.SSLCredentials(context=context)
    if (tokens := auth.get("sasl_oauth_token_provider")) is not None:
        return OAuthCredentials(oauth_cb=tokens, ssl_context=context)
    return faust.SASLCredentials(
        username=auth["sasl_plain_username"],
        password=auth["sasl_plain_password"],
        mechanism=auth["sasl_mechanism"],
        ssl_context=context,
    )


class _Once(logging.Filter):
    """Lets a line of a talkative library pass once in _EVERY_S. txbridge logs the consequences itself, as events."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(_FAUST_IN_OUR_NAME):
            record.name = "faust"
        if not record.name.startswith(_TALKATIVE):
            return True
        place, now = (record.pathname, record.lineno), time.monotonic()
        if self._logged.get(place, float("-inf")) + _EVERY_S > now:
            return False
        self._logged[place] = now
        return True


def calm_down(handlers: Iterable[logging.Handler]) -> None:
    """Make these handlers drop libraries' repeated lines, up to eighty a second, and name Faust's after Faust."""
    for handler in handlers:
        handler.addFilter(_Once())
