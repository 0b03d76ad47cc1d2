"""`python -m txbridge.testing.simulator`: the simulator of the source tree, tests/simulator."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

_SOURCE = Path(__file__).resolve().parents[2]


def main() -> int:
    """Run it and return its exit code; 2 without a source tree."""
    if not (_SOURCE / "tests" / "simulator").is_dir():
        sys.stderr.write(
            "The simulator is not part of the installed package. Clone the repository of txbridge, run `make setup` "
            "there, and then .venv/bin/python -m txbridge.testing.simulator\n"
        )
        return 2
    sys.path.insert(0, str(_SOURCE))
    run: int = importlib.import_module("tests.simulator.__main__").main()
    return run


if __name__ == "__main__":
    sys.exit(main())
