"""The Markdown files: every link has a target, and states and log events are those of the code, and vice versa."""

from __future__ import annotations

import ast
import csv
import json
import pydoc
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.source import ROOT, calls_in
from tools import plots, state_diagram
from tools.tables import FILES
from txbridge.backoff import EVENTS
from txbridge.core.states import TRANSITIONS, Event, TransactionState

_TRACKED = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=ROOT, check=False, capture_output=True, text=True)
#: Without git (an unpacked archive) all existing files, except those of tools.
DOCUMENTS = sorted(
    (ROOT / name for name in _TRACKED.stdout.split("\0") if name)
    if _TRACKED.returncode == 0
    else (one for one in ROOT.rglob("*.md") if not any(part.startswith(".") for part in one.relative_to(ROOT).parts))
)

_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)|^\[[^\]]+\]:\s*(\S+)|(?:src|href)=\"([^\"]+)\"", re.MULTILINE)
_FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
_INLINE_CODE = re.compile(r"(`+)(?:(?!\1).)+\1")


def _prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text("utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub forms them."""
    found: dict[str, int] = {}
    anchors = set()
    for heading in re.findall(r"^#{1,6}\s+(.*?)\s*#*$", _prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = found.get(anchor, 0)
        found[anchor] = number + 1
        anchors.add(f"{anchor}-{number}" if number else anchor)
    return anchors


def _relative_links(path: Path) -> Iterator[str]:
    for groups in _LINK.findall(_INLINE_CODE.sub("", _prose(path))):
        target = next(filter(None, groups))
        if not re.match(r"[a-z][a-z0-9+.-]*:", target):
            yield target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    for target in _relative_links(path):
        name, _, anchor = target.partition("#")
        there = path.parent / name if name else path
        assert there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), target


def test_the_site_has_every_page_and_the_readme_leads_to_its_start() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    entries = [entry for section in navigation for entries in section.values() for entry in entries]
    pages = [entry if isinstance(entry, str) else next(iter(entry.values())) for entry in entries]
    assert sorted(pages) == [
        str(path.relative_to(ROOT / "docs")) for path in DOCUMENTS if path.is_relative_to(ROOT / "docs")
    ]
    linked = {target.partition("#")[0] for target in _relative_links(ROOT / "README.md")}
    assert {"docs/index.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"} <= linked


@pytest.mark.parametrize(("job", "most"), [("FastAPI", 7_000), ("on call", 7_000), ("| audit", 4_500)])
def test_a_job_needs_few_words(job: str, most: int) -> None:
    [row] = [line for line in (ROOT / "docs/index.md").read_text("utf-8").splitlines() if job in line and "|" in line]
    pages = [ROOT / "docs" / page for page in re.findall(r"\(([\w/-]+\.md)\)", row)]
    assert sum(len(page.read_text("utf-8").split()) for page in pages) <= most


_PARSERS = {
    "python": lambda text: compile(text, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True),
    "json": json.loads,
    "toml": tomllib.loads,
    "yaml": lambda text: list(yaml.safe_load_all(text)),
}


def _examples() -> Iterator[tuple[str, str, str]]:
    for path in DOCUMENTS:
        for number, (language, text) in enumerate(
            re.findall(r"^```(\w+)\n(.*?)^```$", path.read_text("utf-8"), re.MULTILINE | re.DOTALL), 1
        ):
            if language in _PARSERS:
                yield f"{path.relative_to(ROOT)}, block {number}", language, text


@pytest.mark.parametrize(
    ("where", "language", "text"), list(_examples()), ids=lambda value: value if "block" in value else ""
)
def test_every_example_can_be_parsed(where: str, language: str, text: str) -> None:
    _PARSERS[language](text)


def test_the_ways_through_the_code_pass_modules_that_exist_and_count_them() -> None:
    page = (ROOT / "docs/architecture.md").read_text("utf-8").split("## Three ways through the code")[1]
    ways = page.split("\n## ")[0].split("\n### ")[1:]
    assert len(ways) == 3
    for way in ways:
        modules = re.findall(r"^\| `([\w/]+\.py)` \|", way, re.MULTILINE)
        assert [one for one in modules if not (ROOT / one).is_file()] == []
        assert f"Modules on the way: {len(set(modules))}." in way
        assert len(set(modules)) == len(modules)


_WORDS = {state: state_diagram.words(state) for state in TransactionState}
_DECISIONS = (Event.COMMIT, Event.ROLLBACK, Event.UNKNOWN, Event.RESUME, Event.ABANDON)


def test_every_name_of_the_api_pages_can_be_imported() -> None:
    names = [name for page in DOCUMENTS for name in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)]
    assert names
    assert [name for name in names if pydoc.locate(name) is None] == []


def test_the_diagram_is_drawn_from_the_transition_table() -> None:
    drawn = (ROOT / "docs/images/states.svg").read_text("utf-8")
    assert drawn == state_diagram.draw(), "python -m tools.state_diagram"
    told = {(before.value, after.value): events for (before, after), events in state_diagram.arrows().items()}
    assert told == {
        ("pending", "committed"): ["commit"],
        ("pending", "held"): ["commit, not deliverable now"],
        ("pending", "scheduled"): ["commit before its time"],
        ("pending", "rolled_back"): ["rollback"],
        ("pending", "pending"): ["check", "unknown"],
        ("pending", "discarded"): ["give up"],
        ("held", "abandoned"): ["abandon"],
        ("held", "committed"): ["deliver"],
        ("held", "scheduled"): ["deliver, more to come"],
        ("scheduled", "abandoned"): ["abandon"],
        ("scheduled", "committed"): ["deliver"],
        ("scheduled", "held"): ["due, not deliverable now"],
        ("discarded", "pending"): ["resume"],
    }


def test_the_plots_are_drawn_from_the_tables_of_their_pages() -> None:
    assert plots.performance().count('<rect class="bar') == 14 + 3
    for name, plot in plots.draw().items():
        assert (ROOT / "docs/images" / name).read_text("utf-8") == plot, "python -m tools.plots"
    drawn = plots.bars("a < b", ("ours", "theirs"), [("1", ("1,000", "250")), ("2", ("", "500"))])
    assert re.findall(r'"(bar\d)" x="16" y="\d+" width="(\d+)" height="15"', drawn) == [
        ("bar0", "384"),
        ("bar1", "96"),
        ("bar1", "192"),
    ]


def _cell(state: TransactionState, event: Event) -> str:
    transition = TRANSITIONS[state, event]
    if transition.refused is not None:
        return f"*{transition.refused.value.replace('_', ' ')}*"
    if transition.state is state:
        return "no change"
    also = "".join(
        f", or {_WORDS[later.state]}"
        for other in (Event.COMMIT_EARLY, Event.COMMIT_UNDELIVERABLE)
        if event is Event.COMMIT and (later := TRANSITIONS.get((state, other))) and later.state is not transition.state
    )
    return f"{_WORDS[transition.state]}{also}"


def _table() -> str:
    rows = [["decision", *_WORDS.values()], ["---"] * (len(_WORDS) + 1)]
    rows += [[event.value, *(_cell(state, event) for state in TransactionState)] for event in _DECISIONS]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def test_the_page_about_concepts_tells_the_states_as_they_are() -> None:
    section = (ROOT / "docs/concepts.md").read_text("utf-8").split("## The states of a message")[1].split("\n## ")[0]
    assert "](images/states.svg)" in section
    assert _table() in section, f"docs/concepts.md must have this table:\n{_table()}"
    final = {
        cells[1]: cells[3]
        for line in section.split("| state | meaning | final |")[1].split("\n\n")[0].splitlines()[2:]
        if len(cells := [cell.strip() for cell in line.split("|")]) == 5
    }
    assert final == {_WORDS[state]: "no" if state.is_open else "yes" for state in TransactionState}


LEVELS = {"debug", "info", "warning", "error"}


def text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def logged_by_the_worker() -> dict[str, str]:
    """Events and levels. Owner and committer have methods that log an event from an argument."""
    found: dict[str, str] = {}
    for _, call in calls_in("txbridge/worker", "txbridge/kafka"):
        match call.func:
            case ast.Attribute(value=ast.Name("_log"), attr=level) if level in LEVELS:
                if (event := text(call.args[0])) is not None:
                    found[event] = level
            case ast.Attribute(value=ast.Name("self"), attr="_report_failure") if len(call.args) > 1:
                warn = any(keyword.arg == "warn" for keyword in call.keywords)
                if (event := text(call.args[0])) is not None:
                    found[event] = "warning" if warn else "error"
            case ast.Attribute(value=ast.Name("self"), attr="_on_aborted"):
                found[text(call.args[1]) or ""] = "warning"
            case ast.Attribute(value=ast.Name("self"), attr="_back_off"):
                if (event := text(call.args[0])) is not None:
                    found[event] = "warning"
    for away, there in EVENTS.values():
        found |= {away: "warning", there: "info"}
    return found


def logged_by_the_client() -> dict[str, str]:
    """Events and levels. `note_trouble` of the connection logs its argument, `contained` what its step raises."""
    found = {"callback_raised": "error", "kafka_callback_raised": "error", "spans_not_recorded": "warning"}
    for _, call in calls_in("txbridge/client", "connectors"):
        match call.func, call.args:
            case ast.Name("report"), [ast.Attribute(value=ast.Name("logging"), attr=level), event, *_]:
                if (name := text(event)) is not None:
                    found[name] = level.lower()
            case ast.Attribute(attr="note_trouble"), [_, event]:
                if (name := text(event)) is not None:
                    found[name] = "error"
    return found


def documented(page: str, heading: str) -> dict[str, str]:
    """The rows of a table of events. One row may name several, with one level or one for each."""
    section = (ROOT / "docs" / page).read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for names, levels in re.findall(r"^\| (`[^|]+`) \| ([a-z, ]+) \|", section, re.MULTILINE):
        events, each = re.findall(r"`(\w+)`", names), levels.strip().split(", ")
        assert len(each) in {1, len(events)}, names
        found |= dict(zip(events, each * len(events) if len(each) == 1 else each, strict=True))
    return found


def test_the_events_of_the_worker():
    page = (ROOT / "docs" / "logs.md").read_text()
    assert "<!-- table: log-events -->" in page
    found: dict[str, str] = {}
    with FILES["log-events"].open(newline="") as file:
        for events, levels, meaning in list(csv.reader(file))[1:]:
            each = levels.split()
            assert len(meaning) > 20
            found |= dict(zip(events.split(), each * len(events.split()) if len(each) == 1 else each, strict=True))
    assert found == logged_by_the_worker()
    named = set(re.findall(r"`(\w+)`", page.partition("Those that need somebody: ")[2]))
    assert {found[event] for event in named} == {"error", "warning"}


def test_the_events_of_the_client():
    assert documented("client.md", "Log lines") == logged_by_the_client()


@pytest.mark.parametrize("events", [logged_by_the_worker(), logged_by_the_client()], ids=["worker", "client"])
def test_event_names_are_words_that_can_be_searched_for(events: dict[str, str]):
    assert len(events) > 10
    assert [event for event in events if not re.fullmatch(r"[a-z]+(_[a-z]+)*", event)] == []
