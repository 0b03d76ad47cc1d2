"""The page of an audit in a real browser, on a desktop and on a phone: nothing is cut off, and evidence comes first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from txbridge_audit.judge.table import VIOLATIONS
from txbridge_audit.report.entry import Entry, Place, Tally
from txbridge_audit.report.html import html
from txbridge_audit.report.overview import GroupOverview, Waiting

from tests.support.browser import browser
from tests.unit.audit.test_audit_page import OVERVIEW, START, VIOLATED

#: The longest names that Kafka and the protocol allow, without a place for a line break.
TOPIC, GROUP = "t" * 249, "g" * 200
#: Elements that reach more than one pixel over the page's edge; rounded sizes may reach one pixel.
_OUTSIDE = """[...document.querySelectorAll('body *')].filter(one => {
    const box = one.getBoundingClientRect();
    return box.width && box.right > window.innerWidth + 1 && !one.closest('svg');
}).map(one => one.tagName + ' ' + one.innerText?.slice(0, 40))"""


def test_page_is_whole_on_a_phone_with_the_longest_names(tmp_path: Path) -> None:
    places = (
        Place("half", f"{TOPIC[:40]}.RMQ_SYS_TRANS_HALF_TOPIC", 123, 123_456_789_012),
        Place("copy", TOPIC, 0, 7),
    )
    entries = tuple(Entry(kind, f"{kind} of {TOPIC}", "89ABCDEF", GROUP, TOPIC, places) for kind in VIOLATIONS)
    report = replace(VIOLATED, violations=Tally(dict.fromkeys(VIOLATIONS, 1), entries), namespace=TOPIC[:100])
    overview = replace(
        OVERVIEW,
        groups=(GroupOverview(GROUP, 10, 4, 1_234, 3, 1),),
        oldest_pending=(Waiting("0123ABCD", GROUP, TOPIC, 1, 42, "held", START - 7_200_000, 15),),
    )
    page = tmp_path / "page.html"
    page.write_text(html(report, overview), encoding="utf-8")
    with browser() as tab:
        for name, width, height in (("desktop", 1_200, 900), ("phone", 390, 844)):
            tab.open(page.as_uri(), width, height, phone=name == "phone")
            assert tab.run("window.innerWidth") == width
            assert tab.run("document.documentElement.scrollWidth") <= width, name
            assert tab.run(_OUTSIDE) == [], name
            # All evidence is shown, before the plots.
            told = tab.text("body")
            assert told.index("123456789012") < told.index("Over time")
            assert all(kind in told for kind in VIOLATIONS)
            assert tab.run(
                "[...document.querySelectorAll('svg')].every(one => one.getBoundingClientRect().width > 200)"
            )
            tab.screenshot(tmp_path / f"{name}.webp")
        assert tab.errors == []
        assert tab.requests == [page.as_uri()] * 2
