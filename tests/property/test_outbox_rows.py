"""Any messages in any transactions: an outbox on SQLite and on a real PostgreSQL gives back what was committed."""

from __future__ import annotations

from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import create_engine, select
from txbridge_sqlalchemy import Outbox, create_outbox
from txbridge_sqlalchemy.outbox_rows import OutboxRows
from txbridge_sqlalchemy.outbox_table import outbox as outbox_table

from tests.support.sql_application import in_new_schema
from txbridge import Message, UsageError
from txbridge.client.outbox_values import decode_headers, encode_headers

#: Most of them are taken; some are refused.
topics = st.one_of(st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True), st.text(max_size=5))
data = st.one_of(st.none(), st.binary(max_size=40), st.text(st.characters(exclude_categories=["Cs"]), max_size=10))
names = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), st.sampled_from(["TXB_V", "a", "a"]))
messages = st.builds(
    Message,
    topics,
    data,
    key=data,
    headers=st.lists(st.tuples(names, data), max_size=4),
    timestamp=st.one_of(st.none(), st.integers(-1, 2**63)),
    partition=st.one_of(st.none(), st.integers(-1, 2**31)),
    deliver_at=st.one_of(st.none(), st.integers(-1, 2**63)),
)
#: Transactions with calls of `add`, and whether each is committed.
scripts = st.lists(st.tuples(st.lists(st.lists(messages, max_size=3), max_size=3), st.booleans()), max_size=4)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def engine(request, tmp_path_factory):
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('outbox')}/app.db"
    else:
        url = in_new_schema(request.getfixturevalue("postgres_url"), "outbox_property")
    made = create_engine(url)
    create_outbox(made)
    yield made
    made.dispose()


@given(script=scripts)
def test_what_was_committed_is_read_back_in_its_order_and_nothing_else(engine, script):
    outbox, expected = Outbox(), []
    with engine.begin() as connection:
        connection.execute(outbox_table.delete())
    for calls, is_committed in script:
        added = []
        with engine.connect() as connection, connection.begin() as transaction:
            for call in calls:
                try:
                    outbox.add(connection, *call)
                except UsageError:
                    # All or nothing of one call.
                    continue
                added += call
            if not is_committed:
                transaction.rollback()
        expected += added if is_committed else []
    with engine.connect() as connection:
        ids = connection.execute(select(outbox_table.c.id)).scalars().all()
    with closing(OutboxRows(engine)) as rows:
        read = rows.read_again(ids)
    assert [(row.message, row.reason) for row in read] == [(message, None) for message in expected]


@given(st.one_of(st.text(max_size=60), st.from_regex(r'\[(\["\w*",("\w*"|null|1|\{("base64":"\w*={0,2}")?\})\],?)*\]')))
def test_any_text_is_headers_or_refused(text):
    try:
        found = decode_headers(text)
    except UsageError:
        return
    Message("t", None, headers=found)


@given(st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=40))), max_size=5))
def test_headers_survive_their_text(headers):
    text = encode_headers(headers)
    found = [] if text is None else decode_headers(text)
    assert Message("t", None, headers=found).headers == tuple(headers)
