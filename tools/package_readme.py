"""The README as a package index shows it, where a relative link leads nowhere; hatchling runs this for each build."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class AbsoluteLinks(MetadataHookInterface):
    """Leads the relative links of README.md to the files of this version, and its pictures to their bytes."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme of the package."""
        files = f"{self.config['repository']}/blob/v{metadata['version']}/"
        text = (Path(self.root) / "README.md").read_text("utf-8")
        text = re.sub(r"(!\[[^]]*\]\()(?![a-z]+:)", rf"\1{files.replace('/blob/', '/raw/')}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": re.sub(r"\]\((?![a-z]+:|#)", f"]({files}", text)}
