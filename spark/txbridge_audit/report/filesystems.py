"""The file systems that may hold the state of a continued audit, by the scheme of a path.

A step counts when its state gets its name (store.py). That takes a rename that is atomic, and fails if the name exists.
File systems have one. Object stores copy and delete instead, one object after the other, and several clients may do so
at the same time. There a half-written state could count, and two audits could continue one ledger.
"""

from __future__ import annotations

import re

from txbridge_audit.errors import CouldNotAuditError

#: Schemes whose rename is one entry of a journal: of the kernel's file system, or of the name node of HDFS.
ATOMIC = frozenset({"file", "hdfs", "viewfs", "webhdfs", "swebhdfs"})
#: The schemes that Hadoop and its vendors use for object stores.
_OBJECT_STORES = frozenset(
    {
        *("s3", "s3a", "s3n", "gs", "abfs", "abfss", "adl", "wasb", "wasbs"),
        *("oss", "cos", "cosn", "obs", "tos", "ks3", "bos", "oci", "swift", "o3fs", "ofs", "dbfs"),
    },
)
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def scheme_of(path: str) -> str | None:
    """The scheme of a URI, in lower case; None for a plain path, whose file system only Spark's configuration knows."""
    found = _SCHEME.match(path)
    return found[1].lower() if found else None


def refuse_without_rename(scheme: str | None) -> None:
    """Raise CouldNotAuditError for a scheme where a rename is not known to be atomic."""
    if scheme is None or scheme in ATOMIC:
        return
    what = (
        f"{scheme}: is an object store, where a rename is not atomic"
        if scheme in _OBJECT_STORES
        else f"{scheme}: is not known as a file system whose rename is atomic"
    )
    raise CouldNotAuditError(
        f"{what}: the state of --continue and --follow needs one. Give --ledger a folder on file:, hdfs:, viewfs: or "
        "webhdfs:, and copy what it holds to where you like after each audit; a ledger that is written once, without "
        "--continue, may be anywhere that Spark can write to",
    )
