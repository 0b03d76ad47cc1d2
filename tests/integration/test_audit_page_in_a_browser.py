"""The page of an audit in a real browser, on a desktop and on a phone: nothing is cut off, and evidence comes first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from txbridge_audit.judge.facts import HalfFacts
from txbridge_audit.judge.table import VIOLATIONS
from txbridge_audit.report.entries import Entry, Place, Tally
from txbridge_audit.report.html import html
from txbridge_audit.report.overview import GroupOverview, OverviewSums, Waiting

from tests.support.audit_cases import plant
from tests.support.audit_judged import BORN, DAY, Judged, MemoryLog
from tests.support.browser import Browser, browser
from tests.unit.audit.test_audit_page import OVERVIEW, START, VIOLATED
from tests.unit.audit.test_audit_report import reported

#: The longest names that Kafka and the protocol allow, without a place for a line break.
TOPIC, GROUP = "t" * 249, "g" * 200
#: Width, and the greatest height of the page with all kinds of violations, before a fold is opened.
SIZES = {"desktop": (1_280, 6_000), "phone": (390, 12_000)}
#: Elements that reach more than one pixel over the page's edge; rounded sizes may reach one pixel.
_OUTSIDE = """[...document.querySelectorAll('body *')].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width && box.right > window.innerWidth + 1;
}).map(one => one.tagName + ' ' + one.innerText?.slice(0, 40))"""
#: Links of the page that lead to nothing in it.
_DEAD = """[...document.querySelectorAll('a')].map(one => one.getAttribute('href'))
    .filter(to => !to.startsWith('https://') && !document.getElementById(to.slice(1)))"""
_FOCUSED = "[document.activeElement.tagName, document.activeElement.innerText]"


@pytest.fixture(scope="module")
def tab() -> Iterator[Browser]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a log with every case that the audit's tests know, and one of each kind of violation at least."""
    log, sums = MemoryLog(), OverviewSums()
    plant(log)
    judged = Judged(
        log, log.facts(partitions=[HalfFacts(p, 0, at.applied_to, at.low) for p, at in log.checkpoints().items()])
    )
    for verdict in judged.verdicts:
        sums.take_verdict(verdict)
    made = reported(log, judged, {})
    # HALF is whole here, so nothing has expired.
    expired = Entry(
        "EXPIRED", "open, and gone", "89ABCDEF", "billing", "orders", (Place("gone", log.names.half, 0, 7),)
    )
    violations = Tally({**made.violations.by_kind, "EXPIRED": 1}, (*made.violations.listed, expired))
    page = tmp_path_factory.mktemp("audit") / "page.html"
    page.write_text(
        html(replace(made, violations=violations, started_at=BORN + DAY), sums.overview()), encoding="utf-8"
    )
    return page


@pytest.mark.parametrize("name", SIZES)
def test_page_with_every_kind_of_violation_fits(name: str, tab: Browser, every_kind: Path, tmp_path: Path) -> None:
    width, highest = SIZES[name]
    tab.open(every_kind.as_uri(), width, 844, phone=name == "phone")
    assert tab.run("document.documentElement.scrollWidth") == width
    assert 2_000 < tab.run("document.documentElement.scrollHeight") <= highest
    assert tab.run(_OUTSIDE) == []
    tab.screenshot(tmp_path / f"{name}.webp")
    # What is behind the folds fits, too.
    tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.run(_OUTSIDE) == []


def test_page_leads_to_its_evidence_by_keyboard(tab: Browser, every_kind: Path) -> None:
    tab.open(every_kind.as_uri(), 1_280, 844)
    assert tab.run(_DEAD) == []
    tab.run("document.documentElement.style.scrollBehavior = 'auto'")

    def press(key: str) -> list[str]:
        code = {"Tab": 9, "Enter": 13}[key]
        # Only a key that means a character activates what has the focus.
        text = {"text": "\r"} if key == "Enter" else {}
        tab.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=code, **text)
        tab.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)
        focused: list[str] = tab.run(_FOCUSED)
        return focused

    assert press("Tab") == ["A", "Fates"]
    reached = [press("Tab") for _ in range(60)]
    tiles = [text.split() for tag, text in reached if tag == "A" and text.split()[1:] and text.split()[0].isdigit()]
    assert {kind for _, kind in tiles} >= {*VIOLATIONS, "pending", "unverifiable"}
    # The tile of LOST leads to its heading; the next fold has the others.
    tab.open(every_kind.as_uri(), 1_280, 844)
    while press("Tab")[1].split()[-1] != "LOST":
        pass
    press("Enter")
    tab.wait("location.hash === '#LOST'")
    assert 0 <= tab.run("document.getElementById('LOST').getBoundingClientRect().top") < 400
    while press("Tab")[0] != "SUMMARY":
        pass
    press("Enter")
    tab.wait("document.activeElement.parentElement.open")
    assert "LOST" in tab.run("document.activeElement.innerText")


def test_page_is_whole_with_the_longest_names(tab: Browser, tmp_path: Path) -> None:
    places = (Place("half", f"{TOPIC[:40]}.RMQ_SYS_TRANS_HALF_TOPIC", 123, 123_456_789_012), Place("copy", TOPIC, 0, 7))
    entries = tuple(Entry(kind, f"{kind} of {TOPIC}", "89ABCDEF", GROUP, TOPIC, places) for kind in VIOLATIONS)
    report = replace(VIOLATED, violations=Tally(dict.fromkeys(VIOLATIONS, 1), entries), namespace=TOPIC[:100])
    overview = replace(
        OVERVIEW,
        groups=(GroupOverview(GROUP, 10, 4, 1_234, 3, 1),),
        oldest_pending=(Waiting(START - 7_200_000, 1, 42, "0123ABCD", GROUP, TOPIC, "held", 15),),
    )
    page = tmp_path / "page.html"
    page.write_text(html(report, overview), encoding="utf-8")
    before = len(tab.requests)
    for name, (width, _) in SIZES.items():
        tab.open(page.as_uri(), width, 844, phone=name == "phone")
        assert tab.run("document.documentElement.scrollWidth") == width, name
        tab.run("document.querySelectorAll('details').forEach(one => one.open = true)")
        assert tab.run(_OUTSIDE) == [], name
        # All evidence is shown, before the charts.
        shown = tab.text("body")
        assert shown.index("123456789012") < shown.index("By the time at which")
        assert all(kind in shown for kind in VIOLATIONS)
        assert tab.run("document.querySelector('.columns').getBoundingClientRect().height") > 100
    assert tab.errors == []
    assert tab.requests[before:] == [page.as_uri()] * 2
