"""The entry point of the command `txbridge`, with the handling of errors, Ctrl-C and a lost output for all commands.

Nothing heavy is imported at the top: loading the commands takes half a second, and Ctrl-C may come meanwhile.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn, TextIO

from txbridge.config.foreign_variables import forget_foreign_variables
from txbridge.errors import TxBridgeError, needs_cli
from txbridge.masking import masked
from txbridge.text import printable

#: Exit code of every command that could not do its work; 1 is left to commands that did it and found something wrong.
EXIT_COULD_NOT = 2
#: The exit code that shells report for a program that SIGPIPE ends. Python ignores SIGPIPE: the write raises instead.
EXIT_NO_READER = 128 + signal.SIGPIPE


class OutputLostError(TxBridgeError):
    """The output of a command cannot be written. `code` is the exit code."""

    def __init__(self, error: OSError) -> None:
        super().__init__(f"the output cannot be written: {error.strerror}")
        self.code = EXIT_NO_READER if isinstance(error, BrokenPipeError) else EXIT_COULD_NOT


class Output:
    """A standard output without secrets. It raises OutputLostError: libraries would handle an OSError in their ways."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(masked(text))
        except OSError as error:
            raise OutputLostError(error) from None

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            raise OutputLostError(error) from None

    def __getattr__(self, name: str) -> object:
        return getattr(self._stream, name)


class Notes(Output):
    """A standard error that nobody has to read: the exit code says what a command has found."""

    def write(self, text: str) -> int:
        with suppress(OutputLostError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OutputLostError):
            super().flush()


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the given command line, by default that of this process.

    A user's mistake prints one line to stderr and exits with 2, never a trace.
    """
    heard = signal.getsignal(signal.SIGINT)
    if heard is signal.default_int_handler:
        # Until a command runs there is nothing to clean up: Ctrl-C just ends the process.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = with_output(partial(_run, arguments))
    if heard is signal.default_int_handler:
        # The work is done. Ctrl-C while Python ends must not print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)  # type: ignore[arg-type]


def with_output(program: Callable[[], object]) -> object:
    """Run a program that prints, and return its exit code. A lost output gives another code and at most one line."""
    # A closed output is None, and nobody reads it.
    stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if isinstance(stdout, io.TextIOWrapper):
        # As Python's stderr does: a character that the encoding of the output lacks is escaped.
        stdout.reconfigure(errors="backslashreplace")
    output = Output(stdout)
    sys.stdout = output
    if sys.stderr is not None:
        sys.stderr = Notes(sys.stderr)
    code: object = EXIT_COULD_NOT
    try:
        try:
            code = program()
        except SystemExit as ended:
            code = ended.code
        output.flush()
    except OutputLostError as error:
        code = error.code
        # The rest of the buffer would fail again when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())  # type: ignore[operator]
        if code != EXIT_NO_READER:
            _say(str(error))
    return code


def _run(arguments: Sequence[str] | None) -> object:
    forget_foreign_variables()
    try:
        with needs_cli():
            # Only here: see the top of this module.
            from txbridge.cli.app import app  # noqa: PLC0415
        # The same name for a script and a module, also in the shell completion.
        app(arguments, prog_name="txbridge")
    except OutputLostError:
        raise
    except TxBridgeError as error:
        _say("\n".join([str(error), *getattr(error, "__notes__", ())]))
        return EXIT_COULD_NOT
    return 0


def _say(text: str) -> None:
    try:
        from txbridge.cli.terminal import complain  # noqa: PLC0415
    except ModuleNotFoundError:
        print(f"error: {printable(text)}", file=sys.stderr)
    else:
        complain(f"error: {text}")


if __name__ == "__main__":
    main()
