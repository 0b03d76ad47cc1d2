"""The programs of docs/inbox.md are those of examples/billing, which tests run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_page_shows_the_programs_as_they_are() -> None:
    page = (ROOT / "docs" / "inbox.md").read_text("utf-8")
    shown = dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL))
    files = {file.name: file.read_text("utf-8") for file in (ROOT / "examples" / "billing").glob("*.py")}
    assert shown == files
