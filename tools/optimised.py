"""`python -m tools.optimised`: exit code 0 when this CPython was built with profile-guided optimisation.

Only the standard library is needed, because the Makefile asks before anything is installed.
"""

from __future__ import annotations

import sys
import sysconfig


def is_optimised() -> bool:
    """Whether this CPython was built with profile-guided optimisation; without it, it is a third slower.

    A build shows it by configure's option. Debian's is optimised without that option, so a distribution's own Python
    counts as optimised.
    """
    return "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "") or sys.base_prefix == "/usr"


if __name__ == "__main__":
    sys.exit(not is_optimised())
