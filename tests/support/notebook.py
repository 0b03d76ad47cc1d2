"""Runner of a notebook: cell after cell in one process of its own, as in Jupyter but without it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.support.command_line import run

#: The cells come on stdin. The values of the expressions go to a file, because cells print to stdout.
_RUN = """
import json, sys
cells = json.load(sys.stdin)
names = {"__name__": "__main__"}
for number, cell in enumerate(cells):
    exec(compile(cell, f"cell {number}", "exec"), names)
answers = {name: eval(asked, names) for name, asked in json.loads(sys.argv[1]).items()}
with open(sys.argv[2], "w") as out:
    json.dump(answers, out)
"""


def run_notebook(
    path: Path, ask: dict[str, str], folder: Path, environment: dict[str, str], timeout: float
) -> tuple[dict[str, Any], str]:
    """Run all cells, then return the values of the expressions in `ask` (JSON) and the output of the cells."""
    book = json.loads(path.read_text(encoding="utf-8"))
    cells = ["".join(cell["source"]) for cell in book["cells"] if cell["cell_type"] == "code"]
    answers = folder / "answers.json"
    command = [sys.executable, "-c", _RUN, json.dumps(ask), str(answers)]
    result = run(command, input=json.dumps(cells), timeout=timeout, env=environment, cwd=folder)
    assert result.returncode == 0, result.stdout + result.stderr
    return json.loads(answers.read_text()), result.stdout
