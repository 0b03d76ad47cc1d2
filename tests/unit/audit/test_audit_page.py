"""The HTML page and the file for Prometheus: they are complete, and have nothing from outside and nothing unescaped."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from txbridge_audit.judge.table import VIOLATIONS
from txbridge_audit.report.entries import Entry, Place, Tally
from txbridge_audit.report.html import duration, html, write_prometheus
from txbridge_audit.report.model import AuditReport, rule_of
from txbridge_audit.report.overview import AuditOverview, GroupOverview, Latency, Waiting

from tests.unit.audit import test_audit_cuts

START = 1_700_000_000_000
NOTHING = AuditOverview(1, {}, None, None, (), ())
OVERVIEW = AuditOverview(
    interval=60_000,
    over_time={START: {"delivered": 7, "LOST": 1}, START + 60_000: {"pending": 2}},
    prepare_to_decision=Latency({0: 1, 5: 4, 2_100: 3}, (5, 2_100, 2_100), 2_100),
    decision_to_delivery=Latency({9: 7}, (9, 9, 9), 9),
    groups=(GroupOverview("<b>billing</b>", 10, 4, 1_234, 3, 1),),
    oldest_pending=(Waiting(START - 7_200_000, 1, 42, "0123ABCD", "billing", "orders", "held", 15),),
)


def report(violations: Tally, findings: Tally, **fates: int) -> AuditReport:
    plain = test_audit_cuts.report(violations, findings, **fates)
    return replace(plain, namespace="shop", bootstrap_servers="broker:9092", cluster_id="C1")


LOST = Entry("LOST", "gone", "89ABCDEF", "billing", "<script>", (Place("half", "HALF", 0, 7), Place("op", "OP", 0, 2)))
VIOLATED = report(
    Tally(dict.fromkeys(VIOLATIONS, 0) | {"LOST": 25, "STUCK": 1}, (*(LOST,) * 25, Entry("STUCK", "too long"))),
    Tally({"LATE": 3, "HALF_GONE": 1}),
    delivered=12_345,
    pending=2,
    LOST=25,
)
CLEAN = report(Tally(dict.fromkeys(VIOLATIONS, 0)), Tally(), delivered=1)


class Page(HTMLParser):
    """The content of the page: text, and the tags with their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.all = " ".join(" ".join(self.text).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_page_tells_the_verdict_first_and_then_everything() -> None:
    page = Page(html(VIOLATED, OVERVIEW))
    told = page.all
    # The contents name the headings, too.
    body = told.index("Fates", told.index("Fates") + 1)
    assert told.index("26 violations") < body
    places = [
        told.index(text, body)
        for text in (
            *("12,345", "LOST", "half HALF/0@7", "decided after it had been discarded", "Oldest pending"),
            *("0123ABCD", "Over time", "Latency", "Checks per group"),
        )
    ]
    assert places == sorted(places)
    for text in (
        *("half HALF/0@7", "op OP/0@2", "89ABCDEF", "too long", "held 2", "1,234", "0123ABCD", "1:42", "2 h", "2.1 s"),
        *(
            "2023-11-14 22:13:20",
            "12,372 transactions",
            "namespace shop on cluster C1 at broker:9092",
            "21 of 26 are shown",
        ),
        "decided after it had been discarded, and refused",
        # The meaning of each kind is text, not a hint that only a mouse shows.
        "committed, not visible",
        "2 held: decided, and the real topic cannot be written",
    ):
        assert text in told, text
    links = {named["href"] for tag, named in page.tags if tag == "a"}
    assert {rule_of("LOST"), rule_of("STUCK"), rule_of("LATE")} <= links
    assert not [named for _, named in page.tags if "title" in named]


def test_page_leads_to_everything_without_a_script() -> None:
    unjudged = replace(VIOLATED, unjudged={"LOST": {"END_GONE": 7}, "STUCK": {"OP_GONE": 1}})
    page = Page(html(unjudged, OVERVIEW))
    ids = {named["id"] for _, named in page.tags if named.get("id")}
    links = [named["href"] or "" for tag, named in page.tags if tag == "a"]
    inside = {link[1:] for link in links if link.startswith("#")}
    assert inside <= ids
    # The contents, and the tiles of fates and violations.
    assert {"fates", "not-judged", "violations", "oldest-pending", "over-time", "findings", "LOST", "STUCK"} <= inside
    # What is not judged comes before the evidence, one entry of each kind before a fold with the others.
    told = page.all
    assert told.index("2 rules could not judge") < told.index("committed, not visible") < told.index("19 more")
    assert told.count("89ABCDEF") == 20
    # What is not judged, the other ones of LOST, and the distribution of latencies.
    assert [tag for tag, _ in page.tags].count("details") == 3
    assert "Deliver it by hand: HALF still holds the message, unless a relay has sent it." in told


def test_page_of_an_audit_without_evidence_is_not_clean() -> None:
    entry = Entry("BLIND", "no rule could judge anything: retention has left nothing in HALF/0")
    blind = report(Tally(dict.fromkeys(VIOLATIONS, 0)), Tally({"BLIND": 1}, (entry,)))
    page = Page(html(replace(blind, unjudged={"LOST": {"HALF_GONE": 9}}), NOTHING))
    assert "Not clean: the evidence is gone" in page.all
    assert "retention has left nothing in HALF/0" in page.all
    assert ("header", {"class": "verdict bad"}) in page.tags


def test_page_needs_nothing_besides_itself_and_escapes_what_comes_from_kafka() -> None:
    text = html(VIOLATED, OVERVIEW)
    tags = Page(text).tags
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in tags}
    assert not [value for _, named in tags for key, value in named.items() if key == "src"]
    assert "url(http" not in text
    assert "&lt;script&gt;" in text
    assert "&lt;b&gt;billing" in text
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags


def test_page_of_a_clean_and_of_an_empty_audit() -> None:
    told = Page(html(CLEAN, NOTHING)).all
    assert "No violations" in told
    assert "1 transactions" not in told
    assert not {"Violations", "Latency", "Over time", "Findings"} & set(re.findall(r"\w+(?: \w+)?", told))


def test_numbers_for_prometheus(tmp_path: Path) -> None:
    path = tmp_path / "audit.prom"
    write_prometheus(VIOLATED, path)
    families = {family.name: family for family in text_string_to_metric_families(path.read_text())}
    values = {
        (sample.name, *(sample.labels[name] for name in sample.labels if name != "namespace")): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert values["txbridge_audit_transactions", "delivered"] == 12_345
    assert values["txbridge_audit_violations", "LOST"] == 25
    # Zeros are written, so that an alert on them can tell "none" from "never run".
    assert values["txbridge_audit_violations", "PHANTOM"] == 0
    assert values["txbridge_audit_findings", "LATE"] == 3
    assert values["txbridge_audit_pending", "held"] == 2
    assert values["txbridge_audit_clean",] == 0
    assert values["txbridge_audit_started_seconds",] == 1_700_000_000
    assert {sample.labels["namespace"] for family in families.values() for sample in family.samples} == {"shop"}
    assert [file.name for file in tmp_path.iterdir()] == ["audit.prom"]


@pytest.mark.parametrize(
    ("ms", "said"),
    [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (7_200_000, "2 h"), (259_200_000, "3 d")],
)
def test_durations_as_people_say_them(ms: int, said: str) -> None:
    assert duration(ms) == said
