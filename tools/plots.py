"""The plots of docs/performance.md and docs/comparison.md, drawn from the tables of these pages: `make pictures`.

So a plot shows what its page says; a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_WIDTH, _LEFT, _TEXT, _BAR = 480, 16, 20, 17
#: Room for the figure at the end of the longest bar.
_LONGEST = _WIDTH - 2 * _LEFT - 64
_STYLE = """text { font: 14px system-ui, sans-serif; fill: #1b2733 } .row { font-weight: 600 } .page { fill: #fff }
.bar0 { fill: #2f6fb5 } .bar1 { fill: #c77700 } .bar2 { fill: #9aa6b2 }
@media (prefers-color-scheme: dark) { text { fill: #e6eaef } .page { fill: #1b2128 }
.bar0 { fill: #6aa9ec } .bar1 { fill: #e3a44a } .bar2 { fill: #6b7886 } }"""
#: Its name, and its figure of each series, or "".
Row = tuple[str, Sequence[str]]


def rows_of(page: str, head: str) -> dict[str, dict[str, str]]:
    """The table of a page whose first line begins with `head`: rows by their first cell, cells by the column's head."""
    text = (DOCS / page).read_text("utf-8")
    table = text[text.index(f"\n{head}") + 1 :].partition("\n\n")[0]
    names, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()]
    return {row[0].replace("`", "").strip("*"): dict(zip(names[1:], row[1:], strict=True)) for row in rows}


def performance() -> str:
    """Transactions a second by each way to call, beside RocketMQ and bare records."""
    rate = "transactions a second"
    table = {name: row[rate] for name, row in rows_of("performance.md", "| | transactions a second").items()}
    peer, bare = (
        dict(zip(("1", "8", "32", "64"), table[f"{name}, 1, 8, 32, 64 threads"].split(", "), strict=True))
        for name in ("RocketMQ", "bare produce and wait")
    )
    rows: list[Row] = [(name, (table[name],)) for name in ("pipelined", "asyncio")]
    for number in peer:
        name = f"blocking, {number} thread{'s' * (number != '1')}"
        rows.append((name, (table[name], peer[number], bare[number])))
    return bars("Transactions a second", ("txbridge", "RocketMQ", "bare produce and wait"), rows)


def comparison() -> str:
    """What an order costs by each way, to the polled outbox."""
    series = {
        "processor time, less is better": "processor time, times polled",
        "orders a second, more is better": "orders a second, 8 threads, times polled",
    }
    table = rows_of("comparison.md", "| | call, ms")
    rows = [(name, [row[column] for column in series.values()]) for name, row in table.items()]
    return bars("An order, with the polled outbox as 1", tuple(series), rows)


def bars(title: str, series: Sequence[str], rows: Sequence[Row]) -> str:
    """A plot of horizontal bars on one scale, grouped by row."""
    most = max(float(one.replace(",", "")) for _, found in rows for one in found if one)
    drawn, y = [_text(_LEFT, 26, title, "row")], 48
    for number, name in enumerate(series):
        drawn += [f'<rect class="bar{number}" x="{_LEFT}" y="{y - 11}" width="12" height="12"/>', _text(34, y, name)]
        y += _TEXT
    for row, found in rows:
        y += _TEXT + 6
        drawn.append(_text(_LEFT, y - 4, row, "row"))
        for number, figure in enumerate(found):
            if figure:
                length = float(figure.replace(",", "")) / most * _LONGEST
                box = f'x="{_LEFT}" y="{y + 1}" width="{max(length, 1):.0f}" height="{_BAR - 2}"'
                drawn += [f'<rect class="bar{number}" {box}/>', _text(_LEFT + length + 6, y + _BAR - 4, figure)]
                y += _BAR
    size = f'width="560" viewBox="0 0 {_WIDTH} {y + 14}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            f'<rect class="page" width="{_WIDTH}" height="{y + 14}" rx="10"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _text(x: float, y: float, text: str, kind: str = "figure") -> str:
    return f'<text class="{kind}" x="{x:.0f}" y="{y}">{escape(text)}</text>'


def draw() -> dict[str, str]:
    """The plots, by their files in docs/images."""
    return {"performance.svg": performance(), "comparison.svg": comparison()}


def main() -> None:
    """Write the files."""
    for name, plot in draw().items():
        (DOCS / "images" / name).write_text(plot, "utf-8")


if __name__ == "__main__":
    main()
