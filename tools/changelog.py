"""`python -m tools.changelog [VERSION]` checks the fragments in changes/; a release moves them into CHANGELOG.md."""

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
#: As long as the lines that are there.
_WIDTH = 132


class FragmentError(Exception):
    """A file in changes/ that is no fragment, or a changelog without a place for it."""


def fragments(folder: Path) -> dict[Path, str]:
    """The files and their texts, in the order of their names."""
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
    """The changelog with these in the sections of what was not released, which becomes this version."""
    before, mark, rest = changelog.partition(f"{UNRELEASED}\n")
    if not mark:
        raise FragmentError(f"CHANGELOG.md has no section {UNRELEASED}")
    end = rest.find("\n## ")
    ours, others = (rest, "") if end < 0 else (rest[: end + 1], rest[end + 1 :])
    # What stands before a heading belongs to none.
    parts = re.split(r"^### (\w+)\n", ours, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))
    for path, text in texts.items():
        section = path.name.split(".")[1].capitalize()
        entry = textwrap.fill(
            f"- {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
        )
        sections[section] = "\n".join(filter(None, (sections.get(section), entry)))
    titles = [title for kind in KINDS if (title := kind.capitalize()) in sections]
    body = "\n".join(f"### {title}\n\n{sections[title]}\n" for title in titles)
    return f"{before}{UNRELEASED}\n\n## [{version}] - {day.isoformat()}\n\n{body}{others and chr(10)}{others}"


def main(arguments: list[str]) -> int:
    """Check, and with a version move them. 1 and a sentence when something is not right."""
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
