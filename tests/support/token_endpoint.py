"""An OAuth token endpoint (RFC 6749, client credentials), and the settings of a broker that takes its tokens."""

from __future__ import annotations

import base64
import json
import socket
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

#: Kafka's own validator of unsigned tokens: what is tried here is how clients come by a token.
BROKER = {
    "listener.name.secure.sasl.enabled.mechanisms": "OAUTHBEARER",
    "listener.name.secure.oauthbearer.sasl.jaas.config": (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    ),
    "listener.name.secure.oauthbearer.sasl.server.callback.handler.class": (
        "org.apache.kafka.common.security.oauthbearer.internals.unsecured.OAuthBearerUnsecuredValidatorCallbackHandler"
    ),
}


class TokenEndpoint:
    """The endpoint. `stop` is an outage, after which `start` listens on the same port."""

    def __init__(self, lifetime_s: float = 3600, tls: ssl.SSLContext | None = None) -> None:
        self.lifetime_s, self._tls = lifetime_s, tls
        #: By client id.
        self.secrets: dict[str, str] = {}
        #: Forms of the requests that got a token.
        self.granted: list[dict[str, list[str]]] = []
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self._port}/token"

    def settings(self, client: str) -> dict[str, str]:
        """librdkafka's properties for a client, with TLS left out."""
        return {
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": client,
            "sasl.oauthbearer.client.secret": self.secrets.setdefault(client, f"secret of {client}"),
            "sasl.oauthbearer.scope": "kafka",
            "sasl.oauthbearer.token.endpoint.url": self.url,
        }

    def start(self) -> None:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                endpoint.answer(self)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            def get_request(self) -> tuple[socket.socket, Any]:
                connection, address = super().get_request()
                tls = endpoint._tls
                return (connection if tls is None else tls.wrap_socket(connection, server_side=True)), address

        self._server = Server(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        form = parse_qs(request.rfile.read(int(request.headers["Content-Length"])).decode())
        credentials = base64.b64decode(request.headers["Authorization"].removeprefix("Basic ")).decode()
        client, _, secret = credentials.partition(":")
        is_right = self.secrets.get(client) == secret and form.get("grant_type") == ["client_credentials"]
        now = int(time.time())
        claims = {"sub": client, "iat": now, "exp": now + int(self.lifetime_s)}
        token = f"{_encoded({'alg': 'none'})}.{_encoded(claims)}."
        answer = {"access_token": token} if is_right else {"error": "invalid_client"}
        if is_right:
            self.granted.append(form)
        body = json.dumps(answer).encode()
        request.send_response(200 if is_right else 401)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)


def _encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()
