"""The programs in docs/inbox.md and docs/django.md: they are the same as in examples, which tests run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def shown_on(page: str) -> dict[str, str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_the_page_of_the_inbox_shows_the_programs_as_they_are() -> None:
    files = {file.name: file.read_text("utf-8") for file in (ROOT / "examples" / "billing").glob("*.py")}
    assert shown_on("inbox.md") == files


def test_the_page_about_django_shows_the_view_as_it_is() -> None:
    view = (ROOT / "examples" / "django" / "shop" / "views.py").read_text("utf-8")
    assert shown_on("django.md")["views.py"] == view
