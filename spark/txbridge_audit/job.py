"""`txbridge audit` for `spark-submit job.py ...` and `python -m txbridge_audit.job ...`, with the same options.

spark-submit passes this file alone, not the package around it. It puts the folder of this file first on the path, where
our modules would hide other modules of the same name. Both are corrected before anything else is imported.
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    _HERE = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != _HERE]
    sys.path.insert(0, str(_HERE.parent))

from txbridge.cli.main import main

if __name__ == "__main__":
    main(["audit", *sys.argv[1:]])
