"""Check of a release before it is published: `make release-check`.

It builds what would be published, and checks metadata and contents. Then it uses the package as a stranger does, in
fresh environments with the newest packages that its requirements allow. The test of the quickstart runs there, out of
reach of the checkout's own packages.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
VERSION: str = PROJECT["project"]["version"]
#: The packages of the wheel, as paths of the checkout.
PACKAGES = [Path(name) for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]
WORK = ROOT / "build/release"
DIST, TREE, BOMS = WORK / "dist", WORK / "tree", WORK / "sbom"
#: The page's own test, and what tests/conftest.py imports besides the extra `testing`.
QUICKSTART = "tests/integration/test_readme.py"
TEST_TOOLS = ("psycopg[binary]", "pytest-xdist")


class ReleaseError(Exception):
    """Something must be repaired before this can be published."""


def pythons() -> list[str]:
    """Versions of Python that the package promises, oldest first."""
    prefix = "Programming Language :: Python :: 3."
    names = [one.removeprefix("Programming Language :: Python :: ") for one in PROJECT["project"]["classifiers"]]
    return sorted((one for one in names if f"Programming Language :: Python :: {one}".startswith(prefix)), key=_minor)


def check_version(tag: str | None) -> None:
    """The changelog has this version; for a tag, the tag, a date, and no page that says it is not published."""
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    if f"\n## {VERSION} - " not in changelog:
        raise ReleaseError(f"CHANGELOG.md has no entry {VERSION}: make changelog")
    if tag is None:
        return
    if tag != f"v{VERSION}":
        raise ReleaseError(f"the tag is {tag}, and pyproject.toml says {VERSION}")
    if f"\n## {VERSION} - unreleased" in changelog:
        raise ReleaseError(f"CHANGELOG.md: the entry {VERSION} needs its date")
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if said := [str(one.relative_to(ROOT)) for one in pages if "is not published yet" in one.read_text("utf-8")]:
        raise ReleaseError(f"these pages say that the version is not published: {', '.join(said)}")


def build() -> tuple[Path, Path]:
    """The sdist, and the wheel made from it, with locked build tools."""
    shutil.rmtree(DIST, ignore_errors=True)
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, ROOT)
    _run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    [sdist], [wheel] = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def check_contents(wheel: Path) -> None:
    """All files of the packages and nothing else; every package has its types; the licence is there."""
    names = {one for one in zipfile.ZipFile(wheel).namelist() if not one.endswith("/")}
    info = f"txbridge-{VERSION}.dist-info"
    wanted = {f"{info}/{one}" for one in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    wanted |= {f"{package.name}/py.typed" for package in PACKAGES}
    for package in PACKAGES:
        listed = _run("git", "-C", ROOT, "ls-files", package, quiet=True).stdout.splitlines()
        wanted |= {str(Path(one).relative_to(package.parent)) for one in listed}
    if names != wanted:
        raise ReleaseError(f"{wheel.name} lacks {sorted(wanted - names)}, and should not have {sorted(names - wanted)}")


def unpack_without_packages(sdist: Path) -> None:
    """The tests and pages of the sdist alone: what they import is what was installed."""
    shutil.rmtree(TREE, ignore_errors=True)
    _run("tar", "--extract", "--file", sdist, "--directory", WORK)
    (WORK / f"txbridge-{VERSION}").rename(TREE)
    for package in PACKAGES:
        shutil.rmtree(TREE / package)


def install(python: str, file: Path, extras: str, *others: str) -> Path:
    """A fresh environment with this file and these extras. The result is its Python."""
    folder = WORK / f"{Path(python).name}-{'sdist' if file.suffix == '.gz' else 'wheel'}"
    _run(python, "-m", "venv", "--clear", folder)
    _run(folder / "bin/python", "-m", "pip", "install", "--quiet", f"{file}[{extras}]", *others)
    said = _run(folder / "bin/txbridge", "--version", quiet=True).stdout
    if VERSION not in said:
        raise ReleaseError(f"{folder.name}: txbridge --version says {said!r}")
    return folder / "bin/python"


def run_quickstart(python: Path) -> None:
    """The page's commands and program, with the installed package."""
    origin = _run(python, "-c", "import txbridge; print(txbridge.__file__)", cwd=TREE, quiet=True).stdout
    if "site-packages" not in origin:
        raise ReleaseError(f"the installed package is not the one that would be tested: {origin}")
    # The options of pyproject.toml belong to the locked packages: a warning of a newer one is no failure here.
    options = ("-o", "addopts=", "-o", "filterwarnings=default", "-p", "no:cacheprovider", "--disable-warnings")
    _run(python, "-m", "pytest", *options, "-q", QUICKSTART, cwd=TREE)


def write_bill(python: Path) -> None:
    """What the environment of a worker consists of, in CycloneDX's format."""
    BOMS.mkdir(exist_ok=True)
    program = Path(sys.executable).parent / "cyclonedx-py"
    options = ("--pyproject", ROOT / "pyproject.toml", "--output-file", BOMS / "txbridge.json")
    _run(program, "environment", *options, python)


def main() -> int:
    """Check everything, and say loudly which version of Python was not tested."""
    parser = argparse.ArgumentParser(prog="make release-check", description=__doc__)
    parser.add_argument("--all", action="store_true", help="fail if a version of Python is missing")
    parser.add_argument("--tag", help="the tag to publish, such as v0.1.0")
    options = parser.parse_args()
    found = {one: path for one in pythons() if (path := _usable(f"python{one}"))}
    missing = ", ".join(one for one in pythons() if one not in found)
    if missing and options.all:
        sys.stderr.write(f"Python {missing} is not on the PATH\n")
        return 1
    try:
        check_version(options.tag)
        sdist, wheel = build()
        check_contents(wheel)
        unpack_without_packages(sdist)
        for python in found.values():
            write_bill(install(python, sdist, "worker"))
            run_quickstart(install(python, wheel, "testing", *TEST_TOOLS))
    except ReleaseError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if missing:
        line = "!" * 100
        sys.stderr.write(f"\n{line}\nNOT TESTED, for it is not on the PATH: Python {missing}\n{line}\n\n")
    print(f"{sdist.name} and {wheel.name} can be published; tested on Python {', '.join(found)}")
    return 0


def _usable(name: str) -> str | None:
    path = shutil.which(name)
    checked = path and subprocess.run([path, "-c", "import ensurepip, venv"], check=False, capture_output=True)
    return path if checked and checked.returncode == 0 else None


def _minor(version: str) -> int:
    return int(version.partition(".")[2])


def _run(*command: object, cwd: Path = ROOT, quiet: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command, its output shown unless it is quiet; what fails ends the check."""
    words = [str(one) for one in command]
    done = subprocess.run(words, cwd=cwd, check=False, text=True, stdout=subprocess.PIPE if quiet else None)
    if done.returncode:
        raise ReleaseError(f"failed with {done.returncode}: {' '.join(words)}")
    return done


if __name__ == "__main__":
    sys.exit(main())
