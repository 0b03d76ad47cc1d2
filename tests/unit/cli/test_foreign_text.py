"""Text of other programs on a terminal: nothing of it controls the terminal, in no command and in no log."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from txbridge import log
from txbridge.cli.terminal import console

#: What we and rich write ourselves: styles, and the cursor of a spinner.
_OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[12]?[AK]|\r")
HOSTILE = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\u202e", "\x07", "\x08" * 9, "a\rb", "\x7f", "\x00", "\x1b[?25h"]


def table(text: str) -> Table:
    made = Table(text, title=text)
    made.add_row(text)
    made.add_row(Text(text, style="bold"))
    return made


FORMS: dict[str, Callable[[str], object]] = {"str": str, "Text": Text, "Table": table, "Panel": Panel}


def is_harmless(output: str) -> bool:
    return all(char.isprintable() or char == "\n" for char in _OURS.sub("", output))


@pytest.mark.parametrize("form", FORMS)
@settings(deadline=None)  # A busy machine may take long.
@given(text=st.text(max_size=40) | st.lists(st.sampled_from(HOSTILE)).map("".join))
def test_whatever_a_command_prints_controls_no_terminal(form: str, text: str) -> None:
    screen = console(force_terminal=True)
    screen.file = io.StringIO()
    screen.print(FORMS[form](text))
    with screen.status(text):
        pass
    # A carriage return and the cursor are ours only where rich puts them.
    assert is_harmless(screen.file.getvalue())
    assert not re.search(r"a\rb", screen.file.getvalue())


def test_a_console_of_rich_alone_lets_it_through() -> None:
    alone = Console(file=io.StringIO(), force_terminal=True)
    alone.print(Text(HOSTILE[0]))
    assert not is_harmless(alone.file.getvalue())  # type: ignore[attr-defined]


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    root, stream = logging.getLogger(), io.StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(sys, "stderr", stream)
    log.configure("console", "info")
    return stream


@pytest.mark.parametrize("text", HOSTILE)
def test_a_log_on_a_console_controls_no_terminal(text: str, logged: io.StringIO) -> None:
    ours, librarys = log.get_logger("txbridge.test"), logging.getLogger("aiokafka.test")
    ours.warning("check_answered", client_id=text, error=ValueError(text), names=[text], raw=text.encode())
    librarys.warning("client %s", text)
    try:
        raise ValueError(text)  # noqa: TRY301
    except ValueError:
        ours.exception("failed")
    assert is_harmless(logged.getvalue().replace("\r", "\\r"))
    assert "\r" not in logged.getvalue()


def test_a_value_of_several_lines_is_no_second_line(logged: io.StringIO) -> None:
    log.get_logger("txbridge.test").warning("refused", remark="x\n2026-11-21 [info     ] all_is_well")
    logging.getLogger("aiokafka.test").warning("x\n2026-11-21 [info     ] all_is_well")
    assert len(logged.getvalue().splitlines()) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@pytest.mark.parametrize(
    "printing", ["console().print(TEXT)", "sys.stdout.write(TEXT)", "console(stderr=True).print(TEXT)"]
)
def test_an_output_whose_encoding_lacks_a_character_gets_it_escaped(encoding: str, printing: str) -> None:
    program = f"""
import sys
from txbridge.cli.main import with_output
from txbridge.cli.terminal import console
TEXT = "größe … 値"
sys.exit(with_output(lambda: [{printing}] and 7))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, (done.stdout + done.stderr).strip()) == (
        7,
        "größe … 値".encode(encoding, "backslashreplace"),
    )


def test_a_command_on_such_an_output_prints_its_report(tmp_path: Path) -> None:
    folder = tmp_path / "größe … 値"
    done = subprocess.run(
        [sys.executable, "-m", "txbridge.cli.main", "kafka", "status", "--data-dir", str(folder)],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert str(folder).encode("latin-1", "backslashreplace") in done.stdout
