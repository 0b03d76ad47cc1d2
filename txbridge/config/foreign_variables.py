"""Variables that the libraries of a program would read. No variable without our prefix changes what a service does.

The environment of a container has variables for others. Faust reads constants from names like FAUST_DEBUG and
F_WEB_PORT, prometheus_client writes to the folder PROMETHEUS_MULTIPROC_DIR, and Python to the file
SSLKEYLOGFILE: it ends a program that may not write there. Faust's settings have variables, too:
worker/faust/settings.py turns those off.
"""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping

#: The last ones switch from compiled to slow code, DEVLOG and TYPEXPR_DEBUG to more output.
_FOREIGN = re.compile(
    r"(FAUST_|F_|PROMETHEUS_).*|SSLKEYLOGFILE|prometheus_multiproc_dir|DEVLOG|TYPEXPR_DEBUG|NO_CYTHON|[A-Z]+_NO_EXTENSIONS"
)


def is_foreign(name: str) -> bool:
    """Whether a library would read this variable."""
    return _FOREIGN.fullmatch(name) is not None


def forget_foreign_variables(environ: MutableMapping[str, str] = os.environ) -> None:
    """Remove them from this process's environment. Call it before the libraries are imported: some read them then."""
    for name in filter(is_foreign, list(environ)):
        del environ[name]
