"""The typed rows of raw Kafka records, after docs/protocol.md and nothing else.

The expressions are Spark's own: no Python runs per record. Bad data raises no error: a row that cannot be read has a
`fault`. Breaches that change no meaning, such as a long remark, are no fault. The discard topic tells which records the
worker has found malformed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own convention)

from txbridge.core import names as headers
from txbridge.core.names import SYSTEM_GROUP, Names
from txbridge_audit.engines.spark.read import message_frames, murmur2
from txbridge_audit.engines.spark.read.once import once
from txbridge_audit.engines.spark.read.raw_record import content, content_of_part, header, users_headers

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
MAX_ENTRIES = 1_000
#: `timestampType` of a record whose writer gave the timestamp. Otherwise the broker did (`message.timestamp.type`).
_GIVEN_TIME = 0

_GROUP = r"\A[A-Za-z0-9._-]{1,200}\z"
_TOPIC = r"\A[A-Za-z0-9._-]{1,249}\z"
_BARRIER = r"\A[A-Za-z0-9._-]{1,64}\z"
_ID = r"\A[0-9A-F]{32}\z"
_DIGITS = r"\A[0-9]+\z"
_ENTRY = r"\A[0-9]+,[0-9A-F]{32},(0|8|12)(,[0-9]*(,.*)?)?\z"
_COMMAND_ENTRY = r"\A[0-9]+,[0-9A-F]{32},0(,[0-9]*(,.*)?)?\z"
_EXACT_ENTRY = r"\A[^,]*,[^,]*,[^,]*(,[^,]*(,[^,]{0,2048})?)?\z"
_COORDINATES = r"\A([0-9]{1,9}):([0-9]{1,18})\z"
_NUMBER = r"\A([1-9][0-9]{0,3})/([1-9][0-9]{0,3})\z"
#: TXB_ENDS of an OP record, and the bits that the index of an entry takes in a position in END.
_ENDS = r"\A([0-9]{1,15}):([0-9]{1,4})-([0-9]{1,15}):([0-9]{1,4})\z"
_INDEX_BITS = 10
_SOURCE = r"\A([A-Za-z0-9._-]+):([0-9]{1,9}):([0-9]{1,18})\z"


def halves(raw: DataFrame) -> DataFrame:
    """HALF: partition, half (offset), born (ms), id, group, real_topic, fixed_partition, deliver_at, content, dated,
    parts, fault.

    `fault` is null when the half message is well formed. `content` is a hash of the user's key, value and headers.
    `dated` is the timestamp of the record to be delivered (ms). `parts` are the messages of a half message with several
    (message_frames.PARTS). Its `real_topic` is that of the first.
    """
    named, told = _of_halves()
    return raw.select(*named).select(*told)


@once
def _of_halves() -> tuple[Sequence[Column], Sequence[Column]]:
    """The columns taken from a raw record, and those made from them."""
    own = {"version": headers.VERSION, "tran_msg": headers.TRAN_MSG, "id": headers.UNIQ_KEY, "group": headers.PGROUP}
    own |= {"real_topic": headers.REAL_TOPIC, "fixed": headers.REAL_QID, "stamp": headers.BORN_TIMESTAMP}
    own |= {"messages": headers.MESSAGES}
    own |= {"time": headers.DELIVER_AT, "barrier": headers.BARRIER}
    born = F.unix_millis("timestamp").alias("born")
    texts = (header(own[name]).alias(name) for name in own)
    reserved = headers.HALF_HEADERS | {headers.CHECK_TIMES, "__transactionId__", "TRAN_PREPARED_QUEUE_OFFSET"}
    users = users_headers(lambda name: name.isin(*sorted(reserved)) | name.startswith("TXB_"))
    several = header(headers.MESSAGES).try_cast("int")
    parts = F.when(several.isNotNull(), message_frames.parts(F.col("value"), several, content_of_part)).alias("parts")
    named = (F.col("partition"), F.col("offset").alias("half"), born, content(users, F.lit(0)), parts, *texts)
    version, tran_msg, identity, group, topic, fixed, stamp, messages, time, barrier = (F.col(column) for column in own)
    first = F.get("parts", F.lit(0))
    fault = _first_fault(
        (version == "1", "TXB_V is not 1"),
        (tran_msg == "true", "TRAN_MSG is not true"),
        (identity.rlike(_ID), "UNIQ_KEY is not a transaction id"),
        (group.rlike(_GROUP), "PGROUP is not a producer group"),
        (topic.rlike(_TOPIC) & ~topic.isin(".", ".."), "REAL_TOPIC is not a topic name"),
        (~_forbidden(topic), "REAL_TOPIC is forbidden"),
        (fixed.isNull() | fixed.rlike(_DIGITS), "REAL_QID is not a partition"),
        (stamp.isNull() | stamp.rlike(_DIGITS), "BORN_TIMESTAMP is not a time"),
        (messages.isNull() | F.col("parts").isNotNull(), "the message frames cannot be read"),
        (messages.isNull() | (first["topic"] == topic), "REAL_TOPIC is not that of the first message"),
        (messages.isNull() | _may_all_be(F.col("parts")), "a message has no topic that it may go to"),
        (messages.isNull() | (fixed.isNull() & stamp.isNull()), "a header that each of several messages has itself"),
        (time.isNull() | time.rlike(_DIGITS), "TXB_DELIVER_AT is not a time"),
        (barrier.isNull() | barrier.rlike(_BARRIER), "TXB_BARRIER is not the identity of a table"),
    )
    told = (
        *map(F.col, ("partition", "half", "born", "id", "group", "real_topic")),
        fixed.try_cast("int").alias("fixed_partition"),
        time.try_cast("bigint").alias("deliver_at"),
        F.col("content"),
        F.coalesce(F.nullif(stamp.try_cast("bigint"), F.lit(0)), "born").alias("dated"),
        F.col("parts"),
        fault.alias("fault"),
    )
    return named, told


def _may_all_be(parts: Column) -> Column:
    return F.forall(parts, lambda part: part["topic"].rlike(_TOPIC) & ~_forbidden(part["topic"]))


def decision_records(raw: DataFrame, *, exactly: bool = False) -> DataFrame:
    """END, a row per record: partition, end_at (offset), stamp, source, group, client, lines, fault.

    `stamp` is the append time (ms), `client` the name that the sender gives itself, `fault` null when the record can be
    read. With `exactly` breaches that only the worker looks for are faults, too. That is for a discard topic that no
    longer tells all of them.
    """
    named, told = _of_ends(exactly=exactly)
    return raw.select(*named).select(*told)


@once
def _of_ends(*, exactly: bool) -> tuple[Sequence[Column], Sequence[Column]]:
    named = (
        F.col("partition"),
        F.col("offset").alias("end_at"),
        F.unix_millis("timestamp").alias("stamp"),
        F.split(F.col("value").cast("string"), "\n").alias("lines"),
        header(headers.VERSION).alias("version"),
        header(headers.SOURCE).alias("source"),
        header(headers.PGROUP).alias("group"),
        header(headers.CLIENT_ID).alias("client"),
        *([F.col("value").cast("string").alias("value"), F.col("headers.key").alias("names")] if exactly else []),
    )
    source, lines = F.col("source"), F.col("lines")
    shape = F.when(
        source.isin("resume", "abandon"), F.forall(lines, lambda line: line.rlike(_COMMAND_ENTRY))
    ).otherwise(
        F.forall(lines, lambda line: line.rlike(_ENTRY)),
    )
    fault = _first_fault(
        (F.col("version") == "1", "TXB_V is not 1"),
        (F.col("group").rlike(_GROUP), "PGROUP is not a producer group"),
        (source.isin("client", "check", "operator", "resume", "abandon"), "SOURCE is unknown"),
        (F.size(lines).between(1, MAX_ENTRIES), "not 1 to 1,000 entries"),
        (shape, "an entry cannot be read"),
        *(_exact_rules() if exactly else ()),
    )
    told = ("partition", "end_at", "stamp", "source", "group", "client", "lines")
    return named, (*map(F.col, told), fault.alias("fault"))


def _exact_rules() -> tuple[tuple[Column, str], ...]:
    """The rest of the protocol's rules for END, on the columns value, names (of headers), client and lines."""
    ours = F.filter("names", lambda name: name.isin(headers.VERSION, headers.PGROUP, headers.SOURCE, headers.CLIENT_ID))

    def numbers(line: Column) -> Column:
        fields = F.split(line, ",")
        half, times = F.get(fields, F.lit(0)), F.coalesce(F.nullif(F.get(fields, F.lit(3)), F.lit("")), F.lit("0"))
        # A number has at most 19 digits, and fits into 64 bits.
        short = (F.length(half) <= 19) & (F.length(times) <= 19)
        return short & half.try_cast("bigint").isNotNull() & times.try_cast("bigint").isNotNull()

    return (
        (F.is_valid_utf8("value"), "the value is not UTF-8"),
        (F.col("client").isNull() | F.is_valid_utf8("client"), "CLIENT_ID is not UTF-8"),
        (F.size(ours) == F.size(F.array_distinct(ours)), "a header of ours is there twice"),
        (F.forall("lines", lambda line: line.rlike(_EXACT_ENTRY)), "an entry has too many fields or a remark too long"),
        (F.forall("lines", numbers), "a number is too large"),
    )


def unreadable(records: DataFrame) -> DataFrame:
    """END records that cannot be read: partition, end_at, fault."""
    return records.where(F.col("fault").isNotNull()).select("partition", "end_at", "fault")


def entries(records: DataFrame) -> DataFrame:
    """Entries of readable END records: partition, end_at, stamp, line (from 0), half, id, decision, source, group,
    client, checks (number of the check that it answers), remark (percent-encoded).
    """
    readable, lines, told = _of_entries()
    return records.where(readable).select(*lines).select(*told)


@once
def _of_entries() -> tuple[Column, Sequence[Column], Sequence[Column]]:
    of_record = ("partition", "end_at", "stamp", "source", "group", "client")
    lines = (*map(F.col, of_record), F.posexplode("lines").alias("line", "text"))
    fields = F.split("text", ",", 5)
    told = (
        *map(F.col, ("partition", "end_at", "stamp", "line")),
        # Null for more digits than an offset can have. The ledger finds no half message there.
        F.get(fields, 0).try_cast("bigint").alias("half"),
        F.get(fields, 1).alias("id"),
        F.get(fields, 2).try_cast("int").alias("decision"),
        *map(F.col, ("source", "group", "client")),
        F.get(fields, 3).try_cast("bigint").alias("checks"),
        F.get(fields, 4).alias("remark"),
    )
    return F.col("fault").isNull(), lines, told


def op_records(raw: DataFrame) -> DataFrame:
    """OP, a row per record: partition, op_at (offset), stamp, outcome, since, until, value, fault.

    `stamp` is the append time (ms), `fault` null when the record can be read. `since` and `until` are positions in END
    (`position_of`). The messages that a record of commits names were decided at or after the first, and before the
    second. Both are null in a record without TXB_ENDS.
    """
    named, told = _of_op()
    return raw.select(*named).select(*told)


@once
def _of_op() -> tuple[Sequence[Column], Sequence[Column]]:
    named = (
        F.col("partition"),
        F.col("offset").alias("op_at"),
        F.unix_millis("timestamp").alias("stamp"),
        header(headers.VERSION).alias("version"),
        header(headers.TAGS).alias("tags"),
        header(headers.OUTCOME).alias("outcome"),
        header(headers.ENDS_APPLIED).alias("ends"),
        F.col("value").cast("string").alias("value"),
    )
    since, until = (
        F.when(F.col("outcome") == "commit", position_of(_number_of("ends", at), _number_of("ends", at + 1)))
        for at in (1, 3)
    )
    fault = _first_fault(
        (F.col("version") == "1", "TXB_V is not 1"),
        (F.col("tags") == headers.REMOVE_TAG.decode(), "TAGS is not d"),
        (F.col("outcome").isin("commit", "rollback", "discard", "abandon"), "OUTCOME is unknown"),
        (F.forall(F.split("value", ","), lambda half: half.rlike(r"\A[0-9]{1,18}\z")), "not a list of half offsets"),
    )
    told = (
        *map(F.col, ("partition", "op_at", "stamp", "outcome")),
        since.alias("since"),
        until.alias("until"),
        F.col("value"),
        fault.alias("fault"),
    )
    return named, told


def _number_of(name: str, group: int) -> Column:
    return F.regexp_extract(name, _ENDS, group).try_cast("bigint")


def position_of(offset: Column, index: Column) -> Column:
    """The position of an entry as one number, in the order of END: by offset of its record, then index in it."""
    return F.shiftleft(offset, _INDEX_BITS) + index


def outcomes(records: DataFrame) -> DataFrame:
    """A row per half message that OP names: partition, op_at, stamp, outcome, since, until, half, fault (then half is
    null).
    """
    named, told = _of_outcomes()
    return records.select(*named).select(*told)


@once
def _of_outcomes() -> tuple[Sequence[Column], Sequence[Column]]:
    named_halves = F.explode_outer(F.when(F.col("fault").isNull(), F.split("value", ","))).alias("half")
    of_record = tuple(map(F.col, ("partition", "op_at", "stamp", "outcome", "since", "until")))
    fault = F.col("fault")
    return (*of_record, fault, named_halves), (*of_record, F.col("half").try_cast("bigint").alias("half"), fault)


def _offset_rows(raw: DataFrame, names: Names) -> DataFrame:
    """Records of OFFSET that are about their own partition and have our version. A worker ignores the others, too."""
    named, ours = _of_offset(names.half)
    return raw.select(*named).where(ours)


@once
def _of_offset(half: str) -> tuple[Sequence[Column], Column]:
    key = F.col("key").cast("string")
    pattern = rf"\A{re.escape(half)}@{SYSTEM_GROUP}/([0-9]{{1,9}})(?:/([0-9]{{1,18}}))?\z"
    named = (
        F.regexp_extract(key, pattern, 1).try_cast("int").alias("partition"),
        F.regexp_extract(key, pattern, 2).try_cast("bigint").alias("half"),
        F.col("partition").alias("stored_in"),
        F.col("offset").alias("at"),
        F.unix_millis("timestamp").alias("stamp"),
        F.col("value").cast("string").alias("value"),
        header(headers.VERSION).alias("version"),
    )
    return named, (F.col("partition") == F.col("stored_in")) & (F.col("version") == "1")


def checkpoints(raw: DataFrame, names: Names) -> DataFrame:
    """OFFSET, the last checkpoint of each partition: partition, low (watermark), applied_to (next END),
    applied_entry (index of the next entry there), topics, stamp (append time, ms).
    """
    parsed = F.from_json("value", "half bigint, end bigint, entry bigint, topics map<string, string>")
    rows = _offset_rows(raw, names).where(F.col("half").isNull()).select("partition", "at", "stamp", parsed.alias("p"))
    readable = rows.where(F.col("p.half").isNotNull() & F.col("p.end").isNotNull())
    last = readable.groupBy("partition").agg(F.max_by("p", "at").alias("p"), F.max_by("stamp", "at").alias("stamp"))
    return last.select(
        "partition",
        F.col("p.half").alias("low"),
        F.col("p.end").alias("applied_to"),
        F.coalesce("p.entry", F.lit(0)).alias("applied_entry"),
        F.col("p.topics").alias("topics"),
        "stamp",
    )


def parked(raw: DataFrame, names: Names) -> DataFrame:
    """OFFSET, every parked entry of a half message, in these columns:

    - partition, half, at (offset), stamp (append time), state (null for a tombstone), id, group, topic, born
    - checks (sent so far), due (of the next one), resumed (when), error (why it is held)

    All times are ms.
    """
    of_half, told, counting = _of_parked()
    return _offset_rows(raw, names).where(of_half).select(*told).where(counting).drop("is_tombstone")


@once
def _of_parked() -> tuple[Column, Sequence[Column], Column]:
    # Parsed one by one, so that an invalid number makes only itself null.
    state = F.from_json("value", "state string")["state"]
    told = (
        *("id string", "group string", "topic string", "born bigint"),
        *("checks bigint", "next bigint", "resumed bigint", "error string"),
    )
    fields = {field.split()[0]: F.from_json("value", field)[field.split()[0]] for field in told}
    columns = (
        *map(F.col, ("partition", "half", "at", "stamp")),
        state.alias("state"),
        F.col("value").isNull().alias("is_tombstone"),
        *(column.alias("due" if name == "next" else name) for name, column in fields.items()),
    )
    is_one = F.col("state").isin("pending", "held", "scheduled", "discarded")
    return F.col("half").isNotNull(), columns, F.col("is_tombstone") | is_one


def discards(raw: DataFrame) -> DataFrame:
    """Discard: malformed, source_topic, partition, source_offset, reason, error, first, discard_end, checks (sent
    before it), and its own coordinates at_partition, at_offset and append time stamp (ms).

    A discarded half message is named by its half coordinates (its source_topic is null), a malformed record by the
    coordinates where it was found. A copy counts as malformed; `first` is the half offset of the message that it
    copies. `discard_end` is TXB_END. An abandoned message has the reason ABANDONED. Rows without coordinates are
    dropped.
    """
    named, told, naming = _of_discards()
    return raw.select(*named).select(*told).where(naming)


@once
def _of_discards() -> tuple[Sequence[Column], Sequence[Column], Column]:
    named = (
        F.col("partition").alias("at_partition"),
        F.col("offset").alias("at_offset"),
        F.unix_millis("timestamp").alias("stamp"),
        header(headers.REASON).alias("reason"),
        header(headers.HALF_COORDINATES).alias("where"),
        header(headers.RECORD_SOURCE).alias("origin"),
        header(headers.ERROR).alias("error"),
        header(headers.END_POSITION).alias("end_position"),
        header(headers.CHECK_TIMES).alias("check_times"),
    )
    reason, where, origin = F.col("reason"), F.col("where"), F.col("origin")
    is_copy = reason.eqNullSafe("COPY")
    malformed = reason.eqNullSafe("MALFORMED") | is_copy
    told = (
        F.when(malformed, F.regexp_extract(origin, _SOURCE, 1)).alias("source_topic"),
        F.when(malformed, F.regexp_extract(origin, _SOURCE, 2))
        .otherwise(F.regexp_extract(where, _COORDINATES, 1))
        .try_cast("int")
        .alias("partition"),
        F.when(malformed, F.regexp_extract(origin, _SOURCE, 3))
        .otherwise(F.regexp_extract(where, _COORDINATES, 2))
        .try_cast("bigint")
        .alias("source_offset"),
        malformed.alias("malformed"),
        reason,
        F.col("error"),
        F.when(is_copy, F.regexp_extract(where, _COORDINATES, 2)).try_cast("bigint").alias("first"),
        F.col("end_position").try_cast("bigint").alias("discard_end"),
        F.col("check_times").try_cast("bigint").alias("checks"),
        *map(F.col, ("stamp", "at_partition", "at_offset")),
    )
    return named, told, F.col("partition").isNotNull() & F.col("source_offset").isNotNull()


def copies(raw: DataFrame, partitions: Mapping[str, int]) -> DataFrame:
    """Real topics: records that carry TXB_HALF. Others are not txbridge's. `partitions` says how many a topic has.

    - topic, copy_partition, copy_at (offset), partition and half (null when TXB_HALF cannot be read), id
    - content: a hash of the user's key, value and headers. Headers of ours that should not be there change it, too.
    - dated: its timestamp (ms); null when the broker gives its own
    - by_key: the partition that its key asks for, if the record is in one where the key was never put; else null
    - number and numbers: which one of several messages it is, and of how many; null when it does not say so
    """
    ours, named, told = _of_copies()
    return raw.where(ours).select(*named).select(*told, _where_the_key_goes(partitions).alias("by_key"))


@once
def _of_copies() -> tuple[Column, Sequence[Column], Sequence[Column]]:
    # The worker adds these two, each once. One of several messages also gets its number.
    added = (headers.UNIQ_KEY, headers.HALF_COORDINATES)
    users = users_headers(lambda name: name.isin(*added, headers.MESSAGE_NUMBER))
    ours = F.array_contains("headers.key", headers.HALF_COORDINATES)
    named = (
        F.col("topic"),
        F.col("partition").alias("copy_partition"),
        F.col("offset").alias("copy_at"),
        header(headers.HALF_COORDINATES).alias("where"),
        header(headers.UNIQ_KEY).alias("id"),
        header(headers.MESSAGE_NUMBER).alias("told"),
        content(users, F.size("headers") - F.size(users) - len(added)),
        F.when(F.col("timestampType") == _GIVEN_TIME, F.unix_millis("timestamp")).alias("dated"),
        F.when(F.length("key") > 0, murmur2.hashed(F.col("key"))).alias("hash"),
    )
    told = (
        *map(F.col, ("topic", "copy_partition", "copy_at")),
        F.regexp_extract("where", _COORDINATES, 1).try_cast("int").alias("partition"),
        F.regexp_extract("where", _COORDINATES, 2).try_cast("bigint").alias("half"),
        *map(F.col, ("id", "content", "dated")),
        F.regexp_extract("told", _NUMBER, 1).try_cast("int").alias("number"),
        F.regexp_extract("told", _NUMBER, 2).try_cast("int").alias("numbers"),
    )
    return ours, named, told


def _where_the_key_goes(partitions: Mapping[str, int]) -> Column:
    """The column `by_key` of `copies`.

    A topic may have had fewer partitions before, so each number that leaves room for the record counts. Today's number
    nearly always explains the place, and then no other number is tried.
    """
    if not partitions:
        return F.lit(None).cast("int")
    place, number = F.col("copy_partition"), F.col("hash")
    pairs = (F.lit(part) for topic, count in sorted(partitions.items()) for part in (topic, count))
    today = F.try_element_at(F.create_map(*pairs), "topic")
    ever = F.exists(F.sequence(place + 1, today), lambda count: number % count == place)
    return F.when((place < today) & (number % today != place) & ~ever, (number % today).cast("int"))


def checks(raw: DataFrame) -> DataFrame:
    """Check requests: topic, check_partition, check_at (offset), partition, half, id, checks (number of this one),
    end_position. Records that cannot be read are dropped: they prove nothing.
    """
    named, readable, told = _of_checks()
    return raw.select(*named).where(readable).select(*told)


@once
def _of_checks() -> tuple[Sequence[Column], Column, Sequence[Column]]:
    named = (
        F.col("topic"),
        F.col("partition").alias("check_partition"),
        F.col("offset").alias("check_at"),
        header(headers.HALF_COORDINATES).alias("where"),
        header(headers.UNIQ_KEY).alias("id"),
        header(headers.CHECK_TIMES).try_cast("bigint").alias("checks"),
        header(headers.END_POSITION).try_cast("bigint").alias("end_position"),
    )
    where = F.col("where")
    told = (
        *map(F.col, ("topic", "check_partition", "check_at")),
        F.regexp_extract(where, _COORDINATES, 1).try_cast("int").alias("partition"),
        F.regexp_extract(where, _COORDINATES, 2).try_cast("bigint").alias("half"),
        *map(F.col, ("id", "checks", "end_position")),
    )
    return named, where.rlike(_COORDINATES), told


def unknown_versions(raw: DataFrame) -> DataFrame:
    """Records of another version than ours among those that only workers write: topic, partition, offset, version."""
    version = F.col("version")
    rows = raw.select("topic", "partition", "offset", header(headers.VERSION).alias("version"))
    return rows.where(version.rlike(_DIGITS) & (version != headers.PROTOCOL_VERSION.decode()))


def _forbidden(topic: Column) -> Column:
    """Whether a topic is Kafka's own, or an internal one of any namespace."""
    whole = F.substring_index(topic, ".", -1).isin("TRANS_CHECK_MAX_TIME_TOPIC", "TRANS_AUDIT_VIOLATIONS_TOPIC")
    return topic.startswith("__") | topic.startswith("RMQ_SYS_") | topic.contains(".RMQ_SYS_") | whole


def _first_fault(*rules: tuple[Column, str]) -> Column:
    """The text of the first rule that does not hold (null counts as not held); null when all hold."""
    return F.coalesce(*(F.when(~F.coalesce(holds, F.lit(False)), F.lit(text)) for holds, text in rules))
