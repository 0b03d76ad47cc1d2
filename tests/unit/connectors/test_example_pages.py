"""The programs of docs/inbox.md and docs/django.md, as they are in examples, which tests run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def shown_on(page: str) -> dict[str, str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_the_page_of_the_inbox_shows_the_program_as_it_is() -> None:
    program = (ROOT / "examples" / "billing" / "billing.py").read_text("utf-8")
    assert shown_on("inbox.md") == {"billing.py": program}


def test_the_page_about_django_shows_the_view_as_it_is() -> None:
    view = (ROOT / "examples" / "django" / "shop" / "views.py").read_text("utf-8")
    assert shown_on("django.md")["views.py"] == view
