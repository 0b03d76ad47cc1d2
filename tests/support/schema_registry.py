"""A schema registry for tests: in memory, with as much of Confluent's HTTP API as its serializers use.

The package registries of this project have no real one; see docs/how-to/consumers.md#schema-registry.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    #: Schemas in the order of their ids, which begin at 1, and the ids of each subject.
    schemas: list[dict[str, object]]
    subjects: dict[str, list[int]]

    def do_GET(self) -> None:
        match self._path():
            case ["schemas", "ids", number] if int(number) <= len(self.schemas):
                self._answer(self.schemas[int(number) - 1])
            case ["subjects", subject, "versions", "latest"] if subject in self.subjects:
                self._answer(self._version(subject, self.subjects[subject][-1]))
            case _:
                self._answer({"error_code": 40403, "message": "not found"}, 404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        schema = {"schemaType": "AVRO", **{name: asked[name] for name in ("schema", "schemaType") if name in asked}}
        match self._path():
            case ["subjects", subject, "versions"]:
                if schema not in self.schemas:
                    self.schemas.append(schema)
                number = self.schemas.index(schema) + 1
                ids = self.subjects.setdefault(subject, [])
                if number not in ids:
                    ids.append(number)
                self._answer(self._version(subject, number))
            case ["subjects", subject] if schema in self.schemas:
                self._answer(self._version(subject, self.schemas.index(schema) + 1))
            case _:
                self._answer({"error_code": 40403, "message": "not found"}, 404)

    def _path(self) -> list[str]:
        return [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]

    def _version(self, subject: str, number: int) -> dict[str, object]:
        version = self.subjects[subject].index(number) + 1
        return {"subject": subject, "id": number, "version": version, **self.schemas[number - 1]}

    def _answer(self, what: dict[str, object], status: int = 200) -> None:
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def schema_registry() -> Iterator[tuple[str, dict[str, list[int]]]]:
    """URL of a registry, and the ids of its subjects."""
    handler = type("Handler", (_Handler,), {"schemas": [], "subjects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", handler.subjects
    finally:
        server.shutdown()
        server.server_close()
