"""The state diagram of docs/concepts.md, drawn from the transition table.

`python -m tools.state_diagram` writes docs/images/states.svg; a test compares the file with the table.
"""

from __future__ import annotations

from html import escape
from math import hypot
from pathlib import Path

from txbridge.core.states import TRANSITIONS, Event, TransactionState

PICTURE = Path(__file__).parents[1] / "docs" / "images" / "states.svg"

_LABELS = {
    Event.COMMIT_UNDELIVERABLE: "commit, not deliverable now",
    Event.COMMIT_EARLY: "commit before its time",
    Event.COMMIT_STEP: "commit before its time",
    Event.DELIVER_STEP: "deliver, more to come",
    Event.DUE_UNDELIVERABLE: "due, not deliverable now",
    Event.GIVE_UP: "give up",
}
_WIDTH, _HEIGHT = 860, 480
_BOX = (132, 46)
#: The centre of each state. A new state needs a place here.
_PLACES = {
    TransactionState.PENDING: (160, 260),
    TransactionState.HELD: (475, 182),
    TransactionState.SCHEDULED: (330, 40),
    TransactionState.COMMITTED: (760, 260),
    TransactionState.ROLLED_BACK: (760, 420),
    TransactionState.ABANDONED: (760, 40),
    TransactionState.DISCARDED: (160, 420),
}


def words(state: TransactionState) -> str:
    """Name of a state in prose."""
    return state.value.replace("_", " ")


def arrows() -> dict[tuple[TransactionState, TransactionState], list[str]]:
    """Changes of state, with the events that cause them; refused events are left out.

    An event without a change of state is drawn only when checks are among these events.
    """
    found: dict[tuple[TransactionState, TransactionState], list[Event]] = {}
    for (state, event), transition in TRANSITIONS.items():
        if transition.refused is None:
            found.setdefault((state, transition.state), []).append(event)
    return {
        pair: sorted({_LABELS.get(event, event.value) for event in events})
        for pair, events in found.items()
        if pair[0] is not pair[1] or Event.CHECK in events
    }


def _edge(
    start: tuple[int, int], end: tuple[int, int], aside: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ends of an arrow between two boxes, moved to its left by `aside`."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = hypot(dx, dy)
    ox, oy = dy / length * aside, -dx / length * aside
    half_width, half_height = _BOX[0] / 2 + 4, _BOX[1] / 2 + 4
    share = min(half_width / abs(dx) if dx else 1.0, half_height / abs(dy) if dy else 1.0)
    return (
        (start[0] + dx * share + ox, start[1] + dy * share + oy),
        (end[0] - dx * share + ox, end[1] - dy * share + oy),
    )


def _text(x: float, y: float, text: str, kind: str = "label", anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(path: str) -> str:
    return f'<path class="arrow" d="{path}" marker-end="url(#head)"/>'


def _arrow(state: TransactionState, after: TransactionState, label: str, *, both_ways: bool) -> list[str]:
    x, y = _PLACES[state]
    if state is after:
        top = y - _BOX[1] / 2 - 3
        loop = _line(f"M {x - 22} {top:.0f} C {x - 50} {top - 62:.0f}, {x + 50} {top - 62:.0f}, {x + 22} {top:.0f}")
        return [loop, _text(x, top - 56, label)]
    (x1, y1), (x2, y2) = _edge(_PLACES[state], _PLACES[after], 16 if both_ways else 0)
    drawn = [_line(f"M {x1:.0f} {y1:.0f} L {x2:.0f} {y2:.0f}")]
    middle, height = (x1 + x2) / 2, (y1 + y2) / 2
    if x1 == x2:
        right = x1 > x
        return [*drawn, _text(x1 + (10 if right else -10), height + 5, label, anchor="start" if right else "end")]
    if y1 == y2:
        return [*drawn, _text(middle, height - 9, label)]
    if both_ways and y2 < y1:
        return [*drawn, _text(middle - 12, height + 16, label, anchor="end")]
    # The text is on the right of the line: below it where it rises, above it where it falls.
    return [*drawn, _text(middle + 12, height + (16 if y2 < y1 else -4), label, anchor="start")]


def draw() -> str:
    """Draw the diagram as SVG."""
    found = arrows()
    x, y = _PLACES[TransactionState.PENDING]
    left = x - _BOX[0] / 2 - 4
    lines = [_line(f"M 38 {y} L {left:.0f} {y}"), f'<circle cx="32" cy="{y}" r="8"/>', _text(92, y - 9, "prepare")]
    for (state, after), events in found.items():
        label = ", ".join(events)
        lines += _arrow(state, after, label, both_ways=(after, state) in found and state is not after)
    for state, (x, y) in _PLACES.items():
        kind = "open" if state.is_open else "final"
        corner = f'x="{x - _BOX[0] // 2}" y="{y - _BOX[1] // 2}" width="{_BOX[0]}" height="{_BOX[1]}" rx="9"'
        lines += [f'<rect class="{kind}" {corner}/>', _text(x, y + 5, words(state), "state")]
    style = (
        "text { font-family: system-ui, sans-serif; fill: #1b2733 } .state { font-size: 16px; font-weight: 600 } "
        ".label { font-size: 14px; paint-order: stroke; stroke: #fff; stroke-width: 6px } circle { fill: #44546a } "
        ".arrow { fill: none; stroke: #44546a; stroke-width: 1.6 } .open { fill: #e8f1fb; stroke: #2f6fb5 } "
        ".final { fill: #eef5ec; stroke: #3d7d3a; stroke-width: 3 } .page { fill: #fff }"
    )
    head = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M 0 0 L 10 5 L 0 10 z" fill="#44546a"/></marker>'
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
            "<title>The states of a message. A thick border marks a final state.</title>",
            f"<style>{style}</style>",
            f"<defs>{head}</defs>",
            f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}"/>',
            *lines,
            "</svg>",
            "",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), "utf-8")
