"""The programs of pages, as they are in examples, which tests run."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def shown_on(page: str) -> dict[str, str]:
    text = (ROOT / "docs" / page).read_text("utf-8")
    return dict(re.findall(r"^```python\n# ([\w.]+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))


def test_the_page_of_the_inbox_shows_the_program_as_it_is() -> None:
    program = (ROOT / "examples" / "shop" / "billing.py").read_text("utf-8")
    [shown] = shown_on("inbox.md").values()
    assert [part for part in shown.split("\n\n\n") if part.strip() not in program] == []


def test_the_tutorial_shows_the_shop_as_it_is() -> None:
    shown, folder = shown_on("tutorial.md"), ROOT / "examples" / "shop"
    assert list(shown) == ["orders.py", "shop.py", "test_shop.py"]
    for name in ("orders.py", "shop.py"):
        assert shown[name] == (folder / name).read_text("utf-8")
    functions = (folder / "tests" / "test_shop.py").read_text("utf-8").strip().split("\n\n\n")
    assert set(shown["test_shop.py"].strip().split("\n\n\n")) < set(functions)


def test_the_page_about_django_shows_the_view_as_it_is() -> None:
    view = (ROOT / "examples" / "django" / "shop" / "views.py").read_text("utf-8")
    assert shown_on("django.md")["views.py"] == view
