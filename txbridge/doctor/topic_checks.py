"""Findings about the internal topics: layout and settings, retention against the checks, replication. No I/O."""

from __future__ import annotations

from collections.abc import Iterator

from txbridge.config.worker import WorkerSettings
from txbridge.core.check_policy import DEFAULT_PATIENCE_S
from txbridge.doctor.cluster_view import KAFKAS_OWN, ClusterView
from txbridge.doctor.finding import Check, Finding, Level, note, ok, problem, unknown, warning
from txbridge.kafka.admin import UNCLEAN, FoundTopic, MissingRight
from txbridge.kafka.topic_rules import LARGEST_BATCH, MARKER_BATCH, marker_problem
from txbridge.text import counted, duration
from txbridge.topics.plan import wanted_topics
from txbridge.topics.spec import LONGEST_OUTAGE_MS, Wanted
from txbridge.topics.verify import repair_of_policy

#: Copies that survive the loss of one broker while another is being restarted.
_USUAL_COPIES = 3
_RETENTION = "retention.ms"
_UNLIMITED = -1


def topics(view: ClusterView) -> list[Finding]:
    """Findings about missing topics, wrong numbers of partitions and wrong settings."""
    found: list[Finding] = []
    half = view.seen[view.names.half]
    for wanted in wanted_topics(view.names, view.options, view.seen):
        found += _of_topic(view, wanted.name, [one for one in wanted.properties if one.name != _RETENTION])
        sight = view.seen[wanted.name]
        # Without the number of partitions of HALF there is nothing to compare with.
        if not isinstance(half, FoundTopic) or not isinstance(sight, FoundTopic) or wanted.partitions is not None:
            continue
        if sight.partitions != half.partitions:
            has = f"{wanted.name} has {counted(sight.partitions, 'partition')}, {half.name} has {half.partitions}"
            do = "use another namespace, or delete the topic if nothing in it is needed; see `txbridge topics plan`"
            found.append(problem(Check.TOPICS, f"{has}: workers refuse to start", do))
    checks = f" and {len(view.groups)} of checks" if view.groups else ""
    good = f"the five internal topics{checks} are as they must be, with {counted(view.partitions, 'partition')}"
    return found or [ok(Check.TOPICS, good)]


def _of_topic(view: ClusterView, topic: str, properties: list[Wanted]) -> Iterator[Finding]:
    sight = view.seen[topic]
    if sight is None:
        checks = view.names.check("")
        is_check_topic = topic.startswith(checks)
        if is_check_topic and view.questions.door:
            yield note(
                Check.DOOR, f"{topic} does not exist yet", "the door creates it with the group's first transaction"
            )
            return
        create = view.apply_command("--group", topic.removeprefix(checks)) if is_check_topic else view.apply_command()
        yield problem(Check.TOPICS, f"{topic} does not exist", f"{create} creates it")
    elif isinstance(sight, MissingRight):
        doubt = "it is there, and" if sight.right == "DESCRIBE" else "it is"
        yield unknown(
            Check.TOPICS,
            f"missing right {sight.right} on topic {topic}: whether {doubt} as it must be, is not known",
            "grant it to the user of this connection; `txbridge topics acls` prints the rights of each role",
        )
    else:
        for wanted in properties:
            actual = sight.config.get(wanted.name)
            if wanted.is_met(actual):
                continue
            level = Level.PROBLEM if wanted.vital else Level.WARNING
            if wanted.name == "cleanup.policy":
                do = repair_of_policy(topic, actual, wanted.value)
            else:
                where = "" if wanted.vital else ", where the provider of the cluster lets it be set"
                do = f"{view.apply_command()} sets it{where}"
            yield Finding(Check.TOPICS, level, f"{topic}: {wanted.complaint_about(actual)}", do)


def retention(view: ClusterView) -> list[Finding]:
    """Findings about retention: it has to keep undecided messages and their records beyond the last check."""
    names, settings = view.names, view.settings
    half = view.seen[names.half]
    if not isinstance(half, FoundTopic):
        # The finding about the topic has the reason and the remedy.
        return []
    kept, age = int(half.config[_RETENTION]), settings.longest_wait
    option = "transaction_max_age" if age == settings.transaction_max_age else "timer_max_delay"
    keeps = f"{names.half} keeps messages for {duration(kept)}, and they may wait for {duration(age)}"
    raises = f"{view.apply_command()} raises retention.ms"
    found: list[Finding] = []
    if kept != _UNLIMITED and kept <= age:
        text = f"{keeps} ({option}): those that still wait would vanish"
        found.append(problem(Check.RETENTION, text, f"{raises}; or lower {option}"))
    elif kept != _UNLIMITED and kept < age + LONGEST_OUTAGE_MS:
        text = f"{keeps}: an outage of more than {duration(kept - age)} loses messages"
        found.append(warning(Check.RETENTION, text, f"{raises} so that 4 days are survived"))
    for wanted in wanted_topics(names, view.options, view.seen):
        sight = view.seen[wanted.name]
        if wanted.name == names.half or not isinstance(sight, FoundTopic):
            continue
        actual = int(sight.config.get(_RETENTION, _UNLIMITED))
        if wanted.name in {names.end, names.op}:
            if actual != _UNLIMITED and (kept == _UNLIMITED or actual < kept):
                text = (
                    f"{wanted.name} keeps its records for {duration(actual)}, shorter than {names.half}: finished "
                    f"messages would be asked about, and could be delivered, again"
                )
                found.append(problem(Check.RETENTION, text, f"{view.apply_command()} raises it"))
            continue
        for one in wanted.unmet_properties(sight.config):
            if one.name == _RETENTION:
                text = f"{wanted.name} keeps its records for {duration(actual)} instead of {duration(int(one.value))}"
                found.append(warning(Check.RETENTION, text, f"{view.apply_command()} raises it"))
    if not found:
        long = "forever" if kept == _UNLIMITED else f"for {duration(kept)}"
        text = f"{_budget(settings)}; {names.half} keeps messages {long}, END and OP no less"
        found.append(ok(Check.RETENTION, text))
    if (last := settings.check_policy.last_check) < DEFAULT_PATIENCE_S * 1000:
        text = (
            f"the last check of a message comes at an age of {duration(last)}. A listener for SQL rolls a message "
            f"without a row back from {DEFAULT_PATIENCE_S:.0f} s on (its patience): before that such a message is "
            f"discarded"
        )
        do = "with SQL: raise transaction_check_max or transaction_check_interval, or give the listeners a patience "
        found.append(note(Check.RETENTION, text, f"{do}below that age"))
    return found


def _budget(settings: WorkerSettings) -> str:
    checks = counted(settings.transaction_check_max, "check")
    last = settings.transaction_timeout + settings.transaction_check_max * settings.transaction_check_interval
    return (
        f"{checks} {'takes' if checks == '1 check' else 'take'} {duration(last)}, the greatest age is "
        f"{duration(settings.transaction_max_age)}"
    )


def replication(view: ClusterView) -> Iterator[Finding]:
    """Findings about topics that lose records, or cannot be written, when a broker is lost."""
    brokers = len(view.brokers)
    usual = min(_USUAL_COPIES, brokers)
    found = [one for topic in (*view.seen, *KAFKAS_OWN) for one in _copies(view, topic, usual)]
    found += _unclean(view)
    yield from found
    if brokers == 1:
        yield note(
            Check.REPLICATION,
            "there is one broker, so that nothing is replicated",
            "for anything but tests: at least three brokers",
        )
    elif not found:
        yield ok(Check.REPLICATION, f"all topics have {usual} copies or more, all of them in sync")


def _unclean(view: ClusterView) -> Iterator[Finding]:
    """Findings about topics that can lose acknowledged records in an election, however many copies they have."""
    sights = {**view.seen, **view.real}.values()
    found = [one.name for one in sights if isinstance(one, FoundTopic) and one.elects_unclean]
    if found:
        yield warning(
            Check.REPLICATION,
            f"{UNCLEAN} is true for {', '.join(found)}: a copy that is not in sync may become the leader, and "
            f"acknowledged messages and decisions are lost",
            "set it to false on these topics (kafka-configs.sh), or on the brokers",
        )


def _copies(view: ClusterView, topic: str, usual: int) -> Iterator[Finding]:
    described, sight = view.described.get(topic), view.seen.get(topic)
    if described is None:
        # Kafka creates its own topics when they are first needed.
        return
    leaderless = [number for number, one in enumerate(described.places) if one.leader < 0]
    behind = [number for number, one in enumerate(described.places) if one.in_sync != one.replicas]
    copies = min(len(one.replicas) for one in described.places)
    if leaderless:
        yield problem(
            Check.REPLICATION,
            f"{topic}: partitions {_list(leaderless)} have no leader",
            "start the brokers that have them",
        )
    elif behind:
        yield warning(
            Check.REPLICATION,
            f"{topic}: not all copies of partitions {_list(behind)} are in sync",
            "start the brokers that are missing, or wait until they have caught up",
        )
    if copies < usual:
        yield warning(
            Check.REPLICATION,
            f"{topic} has {copies} of {usual} copies",
            "kafka-reassign-partitions.sh adds the others",
        )
    if not isinstance(sight, FoundTopic):
        return
    least = int(sight.config.get("min.insync.replicas", "1"))
    if least > copies:
        yield problem(
            Check.REPLICATION,
            f"{topic}: min.insync.replicas is {least}, and it has {counted(copies, 'copy', 'copies')}: nothing can be "
            f"written to it",
            f"set min.insync.replicas to {max(1, copies - 1)}",
        )
    elif copies > 1 and least == 1:
        yield warning(
            Check.REPLICATION,
            f"{topic}: min.insync.replicas is 1 with {copies} copies: what one broker has can be lost with it",
            # With two copies, 2 is safe but refuses writes while one broker is down. Three copies have neither problem.
            f"{view.apply_command()} sets {copies - 1}"
            if copies > 2
            else "have three copies; or set 2, and nothing can be written while one of both brokers is away",
        )


def _list(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:10])) + (", ..." if len(numbers) > 10 else "")


def real_topics(view: ClusterView) -> Iterator[Finding]:
    """Findings about topics that take no Kafka transaction, and about real topics that were named and are missing."""
    for name, sight in {**view.seen, **view.real}.items():
        if isinstance(sight, FoundTopic):
            why = marker_problem(int(sight.config.get(LARGEST_BATCH, MARKER_BATCH)))
            if why is not None:
                yield problem(
                    Check.TOPICS,
                    f"no Kafka transaction can write to {name}: {why}",
                    f"raise {LARGEST_BATCH} of {name} (kafka-configs.sh --alter). If the log of a worker has "
                    f"hanging_transaction, then restart the coordinator: see docs/incidents.md",
                )
        if sight is not None or name not in view.questions.real_topics:
            continue
        # No worker creates one, and a front door only if it was told to.
        if view.questions.creates_topics:
            yield note(Check.DOOR, f"the real topic {name} does not exist yet", "the door creates it when it is named")
        elif view.questions.door:
            yield problem(
                Check.DOOR,
                f"the real topic {name} does not exist: the door answers TOPIC_NOT_EXIST",
                "create it, with as many partitions as the topic of RocketMQ had queues",
            )
        else:
            yield problem(
                Check.TOPICS,
                f"the real topic {name} does not exist: messages for it are held once they are committed",
                f"create it, for example by {view.apply_command('--real-topic', name)}",
            )
