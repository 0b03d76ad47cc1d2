"""Hooks of the docs site: anchors as on GitHub, links into the repository, tables from the code, no other host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
#: A link whose text is the name of a page. On the site its text is the page's title.
_NAMED = re.compile(r"\[(?:[\w-]+/)*[\w-]+\.md\](?=\(([\w./-]+\.md)[#)])")
#: A table that the code tells. It runs in the environment that has txbridge; this one has MkDocs alone.
_TABLE = re.compile(r"^<!-- table: ([\w-]+) -->$", re.MULTILINE)
_PYTHON = ROOT / ".venv" / "bin" / "python"
_LINK = re.compile(r"(\]\()((?:\.\./)+)([^)\s#]+)")
#: Addresses that a browser fetches by itself. Links that a reader may follow are not among them.
_LOADED = re.compile(r"""<(?:script|img|iframe|source|video)\b[^>]*\bsrc\s*=\s*["']?((?:https?:)?//[^"'\s>]+)""")
_LINKED = re.compile(r"<link\b[^>]*>")
_STYLE_IMPORT = re.compile(r"""(?:@import|url\()\s*["']?((?:https?:)?//[^"'\s)]+)""")


def on_config(config: Any) -> Any:
    """Form the anchors of headings as GitHub does, so that a link works there and on the site."""
    config.mdx_configs.setdefault("toc", {}).update(permalink=True, slugify=slugify(case="lower"), separator="-")
    return config


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links that leave docs/ to the repository, name linked pages by their titles, and put the tables in."""
    folder = (ROOT / "docs" / page.file.src_uri).parent

    def leading(match: re.Match[str]) -> str:
        target = (folder / (match[2] + match[3])).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return match[0]
        if not target.exists():
            raise PluginError(f"{page.file.src_uri} links to {match[2]}{match[3]}, which is not in the repository")
        kind = "tree" if target.is_dir() else "blob"
        return f"{match[1]}{config.repo_url.rstrip('/')}/{kind}/main/{target.relative_to(ROOT)}"

    def titled(match: re.Match[str]) -> str:
        target = folder / match[1]
        return f"[{_title(target)}]" if target.exists() else match[0]

    def told_by_the_code(match: re.Match[str]) -> str:
        command = [_PYTHON, "-m", "tools.tables", match[1]]
        return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

    return _TABLE.sub(told_by_the_code, _LINK.sub(leading, _NAMED.sub(titled, markdown)))


def _title(page: Path) -> str:
    return page.read_text("utf-8").partition("\n")[0].removeprefix("# ")


def loaded_from_elsewhere(html: str) -> list[str]:
    """Addresses on other hosts that a browser fetches to show this page."""
    links = [one for one in _LINKED.findall(html) if not re.search(r'rel="?(canonical|prev|next|edit)\b', one)]
    hrefs = [found for one in links for found in re.findall(r'href="?((?:https?:)?//[^"\s>]+)', one)]
    return _LOADED.findall(html) + hrefs + _STYLE_IMPORT.findall(html)


def on_post_page(output: str, **_: Any) -> str:
    """Remove the mark on which Material's script asks GitHub for the repository's stars on each page."""
    return output.replace(' data-md-component="source"', "")


def on_post_build(*, config: Any, **_: Any) -> None:
    """Fail when a page or a stylesheet loads something from another host."""
    site = Path(config.site_dir)
    found = [
        f"{path.relative_to(site)}: {address}"
        for suffix in ("html", "css")
        for path in sorted(site.rglob(f"*.{suffix}"))
        for address in loaded_from_elsewhere(path.read_text("utf-8"))
    ]
    if found:
        raise PluginError("The site must not load anything from another host:\n" + "\n".join(found))
