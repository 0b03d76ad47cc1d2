"""Whatever is shown shows no secret and controls no terminal, however it is quoted and wherever that ends up."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import string
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tests.support.command_line import COMMANDS, MARK, ON_CLUSTER, ON_DATABASE, SECRET_KAFKA, SERVING
from txbridge import log
from txbridge.cli.main import main, with_output
from txbridge.cli.terminal import complain, console, print_json
from txbridge.client.base.log import report
from txbridge.errors import UsageError
from txbridge.masking import masked, masked_values
from txbridge.subject import Subject
from txbridge.text import plain
from txbridge.web.exchange import PageAnswer

#: Without the asterisk: what begins with `***` counts as masked.
_VISIBLE = (string.ascii_letters + string.digits + string.punctuation + "é").replace("*", "")
_UNQUOTED = _VISIBLE.replace('"', "").replace("'", "")
#: What we and rich write ourselves: styles, and the cursor of a spinner.
_OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[[12]?[AK]|\r")
HOSTILE = ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\u202e", "\x07", "\x08" * 9, "a\rb", "\x7f", "\x00", "\x1b[?25h"]


def secrets(alphabet: str) -> st.SearchStrategy[str]:
    return st.tuples(st.text(alphabet, max_size=6), st.text(alphabet, max_size=6)).map(MARK.join)


def in_frame(name: str) -> Callable[[str], str]:
    return lambda text: f"-----BEGIN {name}PRIVATE KEY-----\n{text}\n-----END {name}PRIVATE KEY-----\n"


#: How programs and their libraries write a secret, with the characters that it may have there.
FORMS: dict[str, tuple[str, Callable[[str], str]]] = {
    "password of a URL": (_VISIBLE, "postgresql+psycopg://me:{}@127.0.0.1:5432/shop".format),
    "after a user with an @": (_VISIBLE, "mysql://me@corp:{}@db/shop: refused".format),
    "cut off": (_VISIBLE.replace("@", ""), "redis://:x{}".format),
    "token of a URL": (string.ascii_letters + "%-._~", "https://{}@idp.example:8443/token".format),
    "parameter": (_VISIBLE, "postgresql://db/shop?sslmode=require&password={}&user=me".format),
    "first parameter": (_VISIBLE, 'token from "https://idp.example/token?code={}": timed out'.format),
    "several servers": (_VISIBLE, "SASL_SSL://one:9093,SASL_SSL://me:{}@two:9093".format),
    "parameter of a driver": (_UNQUOTED, "host=db user=me password={} dbname=shop".format),
    "JDBC": (_UNQUOTED, "jdbc:sqlserver://db:1433;user=sa;PWD={}".format),
    "argument": (_UNQUOTED + " ", "--kafka ssl.key.password={}".format),
    "with a colon": (_UNQUOTED + " ", "unknown Kafka property 'sasl.password:{}'".format),
    "JAAS": (_UNQUOTED + " ", 'PlainLoginModule required username="me" password="{}";'.format),
    "OAuth of librdkafka": (_UNQUOTED, "Unrecognized sasl.oauthbearer.config beginning at: {}".format),
    "OAuth": (_UNQUOTED, "sasl.oauthbearer.config=principal=me extension_key={}".format),
    "JSON": (_VISIBLE + " \n", lambda text: json.dumps({"sasl.password": text, "linger.ms": 5})),
    "half of JSON": (_UNQUOTED, '{{"sasl.password": "{}'.format),
    "Python": (_VISIBLE + " \n", lambda text: f"connect(**{ {'password': text} })"),
    "key": (string.ascii_letters + "+/=\n", in_frame("")),
    "encrypted key": (string.ascii_letters + "+/=\n", in_frame("ENCRYPTED ")),
    "half of a key": (string.ascii_letters + "+/=\n", "-----BEGIN RSA PRIVATE KEY-----\n{}".format),
}


def print_all(text: str) -> None:
    table = Table(text, title=text)
    table.add_row(text)
    table.add_row(Text(text, style="bold"))
    screen = console(force_terminal=True)
    screen.width = 30
    screen.print(table, text, Text(text, style="red"), Panel(text))
    with screen.status(Text(text)):
        pass


def log_in(form: str, text: str, **more: object) -> None:
    root = logging.getLogger()
    with patch.object(root, "handlers", []), patch.object(root, "level", root.level):
        log.configure(form, "debug")
        logging.getLogger("aiokafka.test").warning("refused: %s", text)
        report(logging.ERROR, "refused", error=text)
        try:
            raise ValueError(text)  # noqa: TRY301
        except ValueError:
            log.get_logger("txbridge.test").exception("failed", options={"kafka": {"x": [text]}}, **more)


def log_in_an_application(text: str) -> None:
    logger = logging.getLogger("txbridge.client")
    with patch.object(logger, "handlers", [logging.StreamHandler()]), patch.object(logger, "propagate", False):
        report(logging.ERROR, "refused", error=text)


#: Where a text may end up. Each prints it, or returns what is shown.
SINKS: dict[str, Callable[[str], object]] = {
    "complaint": complain,
    "line": lambda text: plain(f"{text:>40}", 39),
    "console": print_all,
    "log on a console": lambda text: log_in("console", text),
    "error": lambda text: f"{UsageError(text)} {UsageError(text)!r}",
    "report": lambda text: print_json(Subject("", text), {"findings": [{"text": text}]}),
    "page": lambda text: PageAnswer.json(HTTPStatus.OK, {"reasons": [text]}).body.decode(),
    "log": lambda text: log_in("json", text),
    "log of an application": log_in_an_application,
    # Its output is the last resort: for a text in a value of any class, and for what libraries and Python print.
    "program": lambda text: with_output(lambda: (print(text), log_in("json", text, raw=text.encode()))) and None,
}


def shows_secret(shown: str) -> bool:
    """Whether a part of a secret is there: a box has more lines."""
    return "s3cret" in shown or "MARK" in shown


@contextmanager
def outputs() -> Iterator[io.StringIO]:
    """What is printed meanwhile."""
    said = io.StringIO()
    with patch.object(sys, "stdout", said), patch.object(sys, "stderr", said):
        yield said


def shown_by(sink: str, text: str) -> str:
    with outputs() as said:
        return f"{SINKS[sink](text) or ''}{said.getvalue()}"


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
def test_no_form_of_a_secret_is_left_anywhere(form: str, data: st.DataObject) -> None:
    alphabet, write = FORMS[form]
    text = write(data.draw(secrets(alphabet)))
    for quoted in (text, repr(text), json.dumps({"error": text})):
        assert MARK not in masked(quoted)
        assert masked(masked(quoted)) == masked(quoted)
    for sink in SINKS:
        shown = shown_by(sink, text)
        assert not shows_secret(shown), sink
        # It was there: only a line is cut.
        assert "***" in shown or sink == "line", sink
        for document in [shown] if sink in {"report", "page"} else shown.splitlines():
            if sink in {"report", "page", "log"} or '"event"' in document:
                json.loads(document)


@given(text=st.text(max_size=40) | st.lists(st.sampled_from(HOSTILE)).map("".join))
def test_whatever_is_shown_controls_no_terminal(text: str) -> None:
    for sink in ("complaint", "line", "console", "log on a console"):
        shown = shown_by(sink, text)
        assert all(char.isprintable() or char == "\n" for char in _OURS.sub("", shown)), sink
        # A carriage return and the cursor are ours only where rich puts them.
        assert not re.search(r"a\rb", shown)


def test_a_console_of_rich_alone_lets_it_through() -> None:
    with outputs() as said:
        Console(force_terminal=True).print(Text(HOSTILE[0]))
    assert HOSTILE[0] in said.getvalue()


@pytest.mark.parametrize(
    "name",
    [
        *("sasl.password", "ssl.key.password", "ssl.key.pem", "ssl.keystore.password", "sasl.oauthbearer.config"),
        *("sasl.oauthbearer.client.secret", "sasl.oauthbearer.assertion.private.key.passphrase", "secret_key"),
        *("sasl.oauthbearer.assertion.private.key.pem", "java.sasl.jaas.config", "java.ssl.keystore.key", "PASSWORD"),
    ],
)
def test_a_value_is_masked_by_its_name(name: str) -> None:
    assert masked_values({"kafka": [{name: MARK}, {name: ""}]}) == {"kafka": [{name: "***"}, {name: ""}]}


_HOSTS = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,12}", fullmatch=True)
_SERVERS = st.lists(st.builds("{}:{}".format, _HOSTS, st.integers(1, 65_535)), min_size=1).map(",".join)
#: Text that has a colon, an @ or a slash, or names a secret, and has none.
ORDINARY = [
    "{}",
    'PLAINTEXT://{0} (is it {{"http": "http://{0}?"}}?)',
    "sasl_ssl://{}/bootstrap: Connect failed (after 3ms in state CONNECT)",
    "postgresql+psycopg://me@{} and sqlite:////var/lib/app.db are away",
    "{}, http://[::1]:9464/status, https://medium.com/@me, https://github.com/txbridge/txbridge#readme, tcp://10.0.0.1:5432",
    "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS/0/1 of {}, HALF/3@1234, 0123456789ABCDEF0123456789ABCDEF",
    "write to me@example.org, or to User:me@REALM at {}",
    "Access denied for user 'me'@'{}' (using password: YES)",
    "wrong password: check sasl.username and sasl.password of {}",
    "the door needs a secret: --secret-file FILE, or TXBRIDGE_ROCKETMQ_SECRET; {}",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE----- of {}",
    '{{"sasl.username": "{}", "ssl.key.location": "/etc/key.pem", "linger.ms": 0}}',
    "sasl.oauthbearer.token.endpoint.url=https://{}",
]


@given(_SERVERS)
def test_ordinary_text_stays_as_it_is(servers: str) -> None:
    for text in (form.format(servers) for form in ORDINARY):
        assert masked(text) == text


def test_long_texts_of_others_are_masked_at_once() -> None:
    """Each of these took minutes or more with a pattern that looks for an end again and again."""
    for part in (
        "password",
        'password="',
        "secret=",
        "password\\",
        "://",
        "a@",
        "-----BEGIN ",
        "PRIVATE KEY-----BEGIN ",
    ):
        masked(f"://{part * 100_000}")


#: Mistakes that end commands at once, with a secret in their settings: the commands, their arguments and variables. A
#: service logs its start before some of them show (tests/integration/test_services_start.py).
MISTAKES: list[tuple[Collection[str], list[str], dict[str, str]]] = [
    (COMMANDS, [f"postgresql://me:{MARK}@db/shop"], {}),
    (ON_CLUSTER, ["--bootstrap-servers", f"me:{MARK}@one"], {}),
    (ON_CLUSTER, [], {"BOOTSTRAP_SERVERS": f"one:9092,SSL://me:{MARK}@two:9092"}),
    (ON_CLUSTER, ["--kafka", f"sasl.password:{MARK}="], {}),
    (ON_CLUSTER, ["--kafka", f'{{"sasl.password": "{MARK}="}}'], {}),
    ({*ON_CLUSTER} - SERVING, ["--kafka=ssl.key.location=nowhere", "--kafka=security.protocol=ssl"], SECRET_KAFKA),
    ({*ON_CLUSTER} - SERVING, ["--kafka=sasl.oauthbearer.method=none"], SECRET_KAFKA),
    (ON_DATABASE, [], {"DATABASE_URL": f"postgresql+nothing://me:{MARK}@db/shop"}),
    (["purge"], [], {"DATABASE_URL": f"postgresql+psycopg://me:a@{MARK}@db/shop"}),
    (["purge"], [], {"DATABASE_URL": f"postgresql+psycopg://127.0.0.1:1/d?password={MARK}"}),
]


@pytest.mark.parametrize(("commands", "arguments", "variables"), MISTAKES)
@given(secret=secrets(string.ascii_letters + string.digits + "!$%+,-._~"))
@settings(max_examples=2)
def test_no_command_shows_a_secret_in_an_error(
    commands: Collection[str], arguments: list[str], variables: dict[str, str], secret: str
) -> None:
    given = {"BOOTSTRAP_SERVERS": "127.0.0.1:1", **variables}
    environ = {"COLUMNS": "24", **{f"TXBRIDGE_{name}": one.replace(MARK, secret) for name, one in given.items()}}
    for command in commands:
        # The URL of a database stands last.
        words = [*command.split(), *COMMANDS[command][: -2 if "DATABASE_URL" in variables else None], *arguments]
        filled = [word.replace("{folder}", "/nowhere").replace(MARK, secret) for word in words]
        with outputs() as said, patch.dict(os.environ, environ), pytest.raises(SystemExit) as ended:
            main(filled)
        assert ended.value.code == 2, (command, said.getvalue())
        assert not shows_secret(said.getvalue()), command
