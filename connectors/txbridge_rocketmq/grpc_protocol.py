"""The classes of RocketMQ's gRPC protocol, as its official Python client ships them."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any

_PACKAGES = ("rocketmq", "rocketmq.grpc_protocol")


def _load(*names: str) -> list[Any]:
    """Import the generated modules alone.

    Their package is the whole client. Its import opens a log file in the home directory, which a container may not be
    able to write, and loads exporters of OpenTelemetry. So its `__init__` does not run here. An application that
    imports the client afterwards gets all of it.
    """
    spec = importlib.util.find_spec(_PACKAGES[0])
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'rocketmq'", name="rocketmq")
    folders = list(spec.submodule_search_locations)
    stand_ins = []
    for name in _PACKAGES:
        if name not in sys.modules:
            package = ModuleType(name)
            package.__path__ = [f"{folder}/{name.replace('.', '/').partition('/')[2]}" for folder in folders]
            sys.modules[name] = package
            stand_ins.append(name)
    try:
        return [importlib.import_module(f"{_PACKAGES[-1]}.{name}") for name in names]
    finally:
        for name in stand_ins:
            del sys.modules[name]


definition, service = _load("definition_pb2", "service_pb2")
SERVICE = service.DESCRIPTOR.services_by_name["MessagingService"]
