"""The fragments in changes/, and the release's changelog built from them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tools.changelog import ROOT, FragmentError, fragments, released

DAY = dt.date(2027, 1, 31)


def test_those_of_this_tree_can_be_read():
    fragments(ROOT / "changes")


def test_a_release_has_what_was_written_before_and_the_fragments(tmp_path):
    (tmp_path / "README.md").write_text("# How\n")
    (tmp_path / "two-lines.fixed.md").write_text("It is said\nin two lines.\n")
    (tmp_path / "a-list.added.md").write_text("`txbridge list`.\n")
    before = (
        "# Changelog\n\n## [Unreleased]\n\n### Fixed\n\n- What was wrong.\n\n"
        "## [0.1.0] - 2026-12-01\n\n### Added\n\n- All.\n"
    )
    assert released(before, fragments(tmp_path), "0.2.0", DAY) == (
        "# Changelog\n\n## [Unreleased]\n\n## [0.2.0] - 2027-01-31\n\n### Added\n\n- `txbridge list`.\n\n"
        "### Fixed\n\n- What was wrong.\n- It is said in two lines.\n\n## [0.1.0] - 2026-12-01\n\n### Added\n\n- All.\n"
    )


def test_the_first_release_ends_where_the_file_ends():
    before = "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- All.\n"
    after = "# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2027-01-31\n\n### Added\n\n- All.\n"
    assert released(before, {}, "0.1.0", DAY) == after
    with pytest.raises(FragmentError, match="no section"):
        released("# Changelog\n", {Path("a.fixed.md"): "It."}, "0.1.0", DAY)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a-list.md", "It lists.", "with a kind of added, changed"),
        ("a-list.new.md", "It lists.", "with a kind of added, changed"),
        ("A list.added.md", "It lists.", "name it WHAT-IT-IS-ABOUT.KIND.md"),
        ("a-list.added.md", "- It lists.", "without a bullet"),
        ("a-list.added.md", " \n", "one or two sentences"),
    ],
)
def test_what_is_no_fragment_is_refused(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(FragmentError, match=says):
        fragments(tmp_path)


@pytest.mark.parametrize("lost", ["A sentence.\n\n### Added\n\n- All.\n", "### Removals\n\n- All.\n"])
def test_no_text_of_the_changelog_is_lost(lost: str) -> None:
    with pytest.raises(FragmentError, match="every line belongs below ### and one of Added"):
        released(f"# Changelog\n\n## [Unreleased]\n\n{lost}", {}, "0.1.0", DAY)
