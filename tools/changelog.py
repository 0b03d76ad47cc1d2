"""Check of the fragments in changes/, and their move into CHANGELOG.md: `python -m tools.changelog [VERSION]`."""

from __future__ import annotations

import datetime as dt
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The sections of *Keep a Changelog*, in its order.
KINDS = ("added", "changed", "deprecated", "removed", "fixed", "security")
UNRELEASED = "## [Unreleased]"
_NAME = re.compile(rf"[a-z0-9]+(?:-[a-z0-9]+)*\.(?:{'|'.join(KINDS)})\.md")
#: Width of the existing lines.
_WIDTH = 132


class FragmentError(Exception):
    """A file in changes/ is not a fragment, or the changelog has no place for it."""


def fragments(folder: Path) -> dict[Path, str]:
    """Map the names of the files to their texts, sorted by name."""
    found = {}
    for path in sorted(folder.iterdir()):
        if path.name == "README.md":
            continue
        if not _NAME.fullmatch(path.name):
            raise FragmentError(
                f"changes/{path.name}: name it WHAT-IT-IS-ABOUT.KIND.md, with a kind of {', '.join(KINDS)}"
            )
        text = " ".join(path.read_text().split())
        if not text or text.startswith(("-", "*", "#")):
            raise FragmentError(f"changes/{path.name}: one or two sentences, without a bullet or a heading")
        found[path] = text
    return found


def released(changelog: str, texts: dict[Path, str], version: str, day: dt.date) -> str:
    """The changelog with a new section for this version: the unreleased entries and these fragments."""
    before, mark, rest = changelog.partition(f"{UNRELEASED}\n")
    if not mark:
        raise FragmentError(f"CHANGELOG.md has no section {UNRELEASED}")
    end = rest.find("\n## ")
    ours, others = (rest, "") if end < 0 else (rest[: end + 1], rest[end + 1 :])
    lead, *parts = re.split(r"^### (.+)\n", ours, flags=re.MULTILINE)
    sections = dict(zip(parts[::2], (part.strip() for part in parts[1::2]), strict=True))
    known = [kind.capitalize() for kind in KINDS]
    if lead.strip() or not set(sections) <= set(known):
        raise FragmentError(f"CHANGELOG.md, {UNRELEASED}: every line belongs below ### and one of {', '.join(known)}")
    for path, text in texts.items():
        section = path.name.split(".")[1].capitalize()
        entry = textwrap.fill(
            f"- {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        sections[section] = "\n".join(filter(None, (sections.get(section), entry)))
    titles = [title for title in known if title in sections]
    body = "\n".join(f"### {title}\n\n{sections[title]}\n" for title in titles)
    return f"{before}{UNRELEASED}\n\n## [{version}] - {day.isoformat()}\n\n{body}{others and chr(10)}{others}"


def main(arguments: list[str]) -> int:
    """Check the fragments, and with a version move them. Return 1 after a message when something is wrong."""
    try:
        found = fragments(ROOT / "changes")
        if arguments:
            path = ROOT / "CHANGELOG.md"
            path.write_text(released(path.read_text(), found, arguments[0], dt.datetime.now(tz=dt.UTC).date()))
            for fragment in found:
                fragment.unlink()
    except FragmentError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
