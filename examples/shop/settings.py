"""The settings of all programs of the shop, from the environment: SHOP_DATABASE_URL, SHOP_KAFKA and so on."""

import os
from datetime import timedelta
from typing import Any

from pydantic import BaseModel, Json


class Settings(BaseModel):
    database_url: str = "postgresql+psycopg://shop@127.0.0.1/shop"
    #: librdkafka's settings as JSON, those of TLS and SASL included.
    kafka: Json[dict[str, Any]] = {"bootstrap.servers": "127.0.0.1:9092"}
    #: Prefix of the internal topics.
    namespace: str = ""
    #: Seconds, or as PT20S. An order that is not paid by then is followed by a reminder.
    remind_after: timedelta = timedelta(days=1)

    @classmethod
    def from_environment(cls) -> "Settings":
        prefix = "SHOP_"
        found = {
            name.removeprefix(prefix).lower(): value for name, value in os.environ.items() if name.startswith(prefix)
        }
        return cls.model_validate(found)
