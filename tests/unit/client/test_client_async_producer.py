"""The client for asyncio, without Kafka: cancellation, hand-over in batches, back-pressure, and the loop in use."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from tests.support.client_fakes import FakeRuntime, until
from tests.support.listeners import COMMIT, Answers
from tests.support.own_threads import names_of_ours
from txbridge import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    EndTransactionError,
    LocalTransactionState,
    Message,
    MessageExt,
    PrepareError,
    UsageError,
)
from txbridge.client.checks.calls import CheckRequest
from txbridge.client.flow.attempts import Turns
from txbridge.core.decision_record import Decision
from txbridge.errors import KafkaUnreachableError

MESSAGE = Message("t", b"v")
SETTINGS = {"bootstrap.servers": "127.0.0.1:1"}
REQUEST = CheckRequest(MessageExt.for_execution(Message("t", b""), "0123456789ABCDEF" * 2, 0, 1, 2), 0)


async def commit(*_):
    return COMMIT


class Listener(AsyncTransactionListener):
    """A listener with coroutine functions."""

    def __init__(self, execute=commit, check=commit):
        self.execute, self.check = execute, check

    async def execute_local_transaction(self, message, arg):
        return await self.execute(message, arg)

    async def check_local_transaction(self, message):
        return await self.check(message)


class Plain(AsyncTransactionListener):
    """A listener with plain functions."""

    def __init__(self, answer):
        self.answer = answer

    def execute_local_transaction(self, message, arg):
        return self.answer()

    def check_local_transaction(self, message):
        return self.answer()


@pytest.fixture
def runtime(monkeypatch):
    runtime = FakeRuntime()

    def start(_, checks, is_unwanted):
        runtime.checks = checks
        return runtime

    monkeypatch.setattr("txbridge.client.runtime.start", start)
    return runtime


def producer_with(listener, **options):
    return AsyncTransactionProducer("orders", listener, SETTINGS, **options)


async def written(runtime, count):
    await until(lambda: len(runtime.written) >= count)


async def acknowledged(producer, runtime):
    """Begin a send, until its half message is acknowledged."""
    task = asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE))
    await written(runtime, 1)
    runtime.acknowledge()
    return task


async def test_completions_of_a_thread_wake_the_loop_once(runtime):
    async with producer_with(Listener()) as producer:
        loop, wakes = asyncio.get_running_loop(), []
        wake = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *arguments, **more: wakes.append(1) or wake(*arguments, **more)
        tasks = [asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE)) for _ in range(100)]
        await written(runtime, 100)
        thread = threading.Thread(target=runtime.acknowledge)
        thread.start()
        # This blocks the loop meanwhile, as other work of the application would.
        thread.join()
        results = await asyncio.gather(*tasks)
        assert len(wakes) == 1
        waits = [asyncio.ensure_future(result.wait(120)) for result in results]
        await asyncio.sleep(0)
        thread = threading.Thread(target=lambda: [end.settle_with() for end in runtime.ends])
        thread.start()
        thread.join()
        await asyncio.gather(*waits)
        assert len(wakes) == 2
        del loop.call_soon_threadsafe
    assert [result.transaction_id for result in results] == [end.entry.transaction_id for end in runtime.ends]


async def test_cancelled_before_the_half_message_is_acknowledged_it_is_given_up(runtime):
    async with producer_with(Listener()) as producer:
        task = asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE))
        await written(runtime, 1)
        [(_, transaction_id, _)] = runtime.written
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (runtime.given_up, runtime.running) == ([transaction_id], set())
        runtime.acknowledge()
    assert runtime.ends == []


async def test_cancelled_while_its_coroutine_runs_it_sends_unknown(runtime):
    cleaned, begun = [], asyncio.Event()

    async def slow(*_):
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            cleaned.append(1)

    async with producer_with(Listener(slow)) as producer:
        task = await acknowledged(producer, runtime)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert runtime.running == set()
    [end] = runtime.ends
    assert end.entry.decision is Decision.UNKNOWN
    assert end.entry.remark == "executeLocalTransactionBranch exception: CancelledError: "
    assert (cleaned, runtime.given_up) == ([1], [])


async def test_cancelled_while_its_thread_runs_it_counts_as_running_until_that_is_done(runtime):
    begun, go_on = threading.Event(), threading.Event()
    producer = producer_with(Plain(lambda: begun.set() or (go_on.wait(30) and COMMIT)))
    task = await acknowledged(producer, runtime)
    await until(begun.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert runtime.decisions() == ["UNKNOWN"]
    assert len(runtime.running) == 1
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.05)
    assert not closing.done()
    go_on.set()
    await closing
    assert runtime.running == set()


async def test_cancelled_while_it_waits_for_a_thread_its_method_is_not_called(runtime):
    called = []
    loop, go_on = asyncio.get_running_loop(), threading.Event()
    async with producer_with(Plain(lambda: called.append(1))) as producer:
        # All threads of the default executor.
        blockers = [loop.run_in_executor(None, go_on.wait, 10) for _ in range(40)]
        task = await acknowledged(producer, runtime)
        # Enough turns of the loop to reach the listener.
        for _ in range(20):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await asyncio.gather(*blockers)
    assert runtime.decisions() == ["UNKNOWN"]
    assert called == []


async def test_too_many_wait_for_their_turn_but_a_listener_does_not(runtime):
    async def nested(message, arg):
        if arg == "outer":
            await producer.send_message_in_transaction(MESSAGE, "inner")
        return COMMIT

    async with producer_with(Listener(nested)) as producer:
        producer._turns = Turns(2)
        tasks = [asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE, "outer")) for _ in range(6)]
        most = 0
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            most = max(most, len(runtime.running))
            runtime.acknowledge()
        # Two, and one nested in each.
        assert most == 4
    assert len(runtime.ends) == 12


@pytest.mark.parametrize("full", ["ends", "half messages"])
async def test_no_room_is_waited_for_without_a_thread_and_then_a_prepare_error(runtime, full):
    if full == "ends":
        runtime.room = False
    else:
        runtime.refusals.extend([BufferError("full")] * 1_000_000)
    async with producer_with(Listener()) as producer:
        sends = [producer.send_message_in_transaction(MESSAGE) for _ in range(20)]
        errors = await asyncio.gather(*sends, return_exceptions=True)
    assert {type(error) for error in errors} == {PrepareError}
    expected = "too many decisions wait" if full == "ends" else "librdkafka's queue stayed full"
    assert all(str(error).startswith(expected) for error in errors)
    # Each has waited, and only the start has needed a thread.
    assert full != "ends" or runtime.looks_for_room >= 40
    assert [name for name in names_of_ours() if name.startswith("txbridge-async_")] in ([], ["txbridge-async_0"])
    assert (len(runtime.given_up), runtime.running) == (20, set())


async def test_a_small_queue_of_librdkafka_is_used_without_long_pauses(runtime):
    write_half, runtime.sends._prepare_timeout = runtime.write_half, 5

    def write_alone(*half):
        if runtime.written:
            raise BufferError("full")
        write_half(*half)
        asyncio.get_running_loop().call_soon(runtime.acknowledge)

    runtime.write_half = write_alone
    async with producer_with(Listener()) as producer:
        await asyncio.gather(*(producer.send_message_in_transaction(MESSAGE) for _ in range(60)))
    assert runtime.decisions() == ["COMMIT"] * 60


async def test_what_plain_methods_return_and_raise(runtime):
    def answers():
        yield COMMIT
        yield commit()
        yield 42

    # Its fourth call raises StopIteration, which no future takes.
    async with producer_with(Plain(answers().__next__)) as producer:
        results = []
        for _ in range(4):
            task = await acknowledged(producer, runtime)
            results.append(await task)
    assert [result.local_transaction_state.name for result in results] == [
        "COMMIT_MESSAGE",
        "COMMIT_MESSAGE",
        "UNKNOWN",
        "UNKNOWN",
    ]
    assert isinstance(results[3].local_exception, StopIteration)


async def test_the_result_waits_without_blocking_the_loop(runtime):
    async with producer_with(Listener()) as producer:
        task = await acknowledged(producer, runtime)
        result = await task
        assert result.transaction_id not in repr(result)
        with pytest.raises(TimeoutError):
            await result.wait(0.01)
        waiting = asyncio.ensure_future(result.wait())
        await asyncio.sleep(0)
        runtime.ends[0].settle_with(EndTransactionError("given up"))
        with pytest.raises(EndTransactionError):
            await waiting
        with pytest.raises(EndTransactionError):
            await result.wait(0)


async def test_another_loop_and_a_fork_are_refused(runtime):
    producer = await producer_with(Listener()).start()
    sends = partial(producer.send_message_in_transaction, MESSAGE)

    def in_another_loop():
        for call in (producer.start, producer.flush, producer.close, sends):
            with pytest.raises(UsageError, match=r"another event loop; create one in each .tests: `with TestClient"):
                asyncio.run(call())

    await asyncio.to_thread(in_another_loop)
    with pytest.MonkeyPatch.context() as forked:
        forked.setattr("txbridge.client.base.process._generation", -1)
        with pytest.raises(UsageError, match="before a fork; create one in the child"):
            await sends()
    await producer.close()


async def test_flushes_have_two_threads_and_a_further_one_only_the_rest_of_its_time(runtime):
    go_on, timeouts = threading.Event(), []

    def flush(timeout):
        timeouts.append(timeout)
        if timeout is None:
            go_on.wait()
        return 3 if timeout == 0 else 0

    runtime.flush = flush
    producer = await producer_with(Listener()).start()
    others = [asyncio.ensure_future(producer.flush()) for _ in range(2)]
    try:
        await until(lambda: timeouts == [None, None])
        assert await asyncio.wait_for(producer.flush(0.01), 20) == 3
        later = asyncio.ensure_future(producer.flush(600))
        await asyncio.sleep(0.05)
        # As many as a thread each, and more, do not hold up close().
        await asyncio.wait_for(producer.close(0.1), 20)
    finally:
        go_on.set()
    assert await asyncio.gather(*others, later) == [0, 0, 0]
    assert timeouts[:3] == [None, None, 0]
    assert 0 < timeouts[3] < 600


async def test_close_by_a_listener_is_refused_also_in_a_task_of_its_own(runtime):
    async def closes(*_):
        await asyncio.wait_for(producer.close(), 10)

    async with producer_with(Listener(closes)) as producer:
        task = await acknowledged(producer, runtime)
        assert isinstance((await task).local_exception, UsageError)


async def test_a_task_that_outlives_the_listener_may_close(runtime):
    closing = []

    async def later(*_):
        async def close():
            await asyncio.sleep(0.01)
            await producer.close()

        closing.append(asyncio.ensure_future(close()))
        return COMMIT

    producer = await producer_with(Listener(later)).start()
    task = await acknowledged(producer, runtime)
    await task
    await closing[0]
    assert runtime.closed


async def test_a_cancelled_first_send_leaves_the_start_to_the_others(monkeypatch, runtime):
    go_on, started = threading.Event(), []

    def start(*_):
        go_on.wait(30)
        started.append(1)
        return runtime

    monkeypatch.setattr("txbridge.client.runtime.start", start)
    producer = producer_with(Listener())
    first, second = (asyncio.ensure_future(producer.start()) for _ in range(2))
    await asyncio.sleep(0.01)
    first.cancel()
    go_on.set()
    assert await second is producer
    assert first.cancelled()
    await producer.close()
    await producer.close()
    with pytest.raises(UsageError, match="closed"):
        await producer.send_message_in_transaction(MESSAGE)
    assert started == [1]


async def test_a_start_that_failed_can_be_tried_again_in_another_loop(monkeypatch, runtime):
    attempts = []

    def start(*_):
        attempts.append(1)
        if len(attempts) == 1:
            raise KafkaUnreachableError("no Kafka")
        return runtime

    monkeypatch.setattr("txbridge.client.runtime.start", start)
    producer = producer_with(Listener())
    with pytest.raises(KafkaUnreachableError):
        await asyncio.to_thread(asyncio.run, producer.start())
    async with producer:
        assert await producer.flush() == 0


def test_a_closed_loop_gets_no_call(runtime, caplog):
    async def main():
        await producer.start()
        task = asyncio.ensure_future(producer.send_message_in_transaction(MESSAGE))
        await written(runtime, 1)
        return task

    producer = producer_with(Listener())
    asyncio.run(main())
    runtime.acknowledge()
    assert len(runtime.given_up) == 1
    answers: list = []
    runtime.checks.ask_application(REQUEST, answers.append)
    assert answers == [None]
    assert "check_not_asked" in caplog.text
    producer._calls_in.shutdown()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"listener": None}, "an AsyncTransactionListener or a TransactionListener is needed, not NoneType"),
        ({"check_concurrency": 0}, "check_concurrency must be at least 1"),
        ({"check_concurrency": "1"}, "check_concurrency must be at least 1, not '1'"),
    ],
)
def test_constructor_refuses(arguments, complaint):
    with pytest.raises(UsageError, match=complaint):
        AsyncTransactionProducer(**{"group": "orders", "listener": Listener(), "settings": SETTINGS, **arguments})


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_checks_run_on_the_loop_so_many_at_once(runtime, concurrency):
    running = most = 0

    async def check(_):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return COMMIT

    answers: list = []
    async with producer_with(Listener(check=check), check_concurrency=concurrency):
        thread = threading.Thread(
            target=lambda: [runtime.checks.ask_application(REQUEST, answers.append) for _ in range(9)]
        )
        thread.start()
        await until(lambda: len(answers) == 9)
        thread.join()
    assert {answer.state for answer in answers} == {COMMIT}
    assert most == concurrency


async def test_close_waits_for_the_check_that_runs_and_leaves_the_rest(runtime):
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def check(_):
        begun.set()
        await go_on.wait()
        return COMMIT

    answers: list = []
    producer = await producer_with(Listener(check=check)).start()
    for _ in range(3):
        runtime.checks.ask_application(REQUEST, answers.append)
    await begun.wait()
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.02)
    assert not closing.done()
    go_on.set()
    await closing
    runtime.checks.ask_application(REQUEST, answers.append)
    await asyncio.sleep(0.01)
    # The rest stays in Kafka for another member of the group.
    assert len(answers) == 1


async def test_a_cancelled_check_is_unknown(runtime):
    async def check(_):
        raise asyncio.CancelledError

    answers: list = []
    async with producer_with(Listener(check=check)):
        runtime.checks.ask_application(REQUEST, answers.append)
        await until(lambda: answers)
    assert answers[0].state is LocalTransactionState.UNKNOWN


async def test_a_blocking_listener_will_do(runtime):
    def in_a_thread(*_):
        return COMMIT if threading.current_thread() is not threading.main_thread() else None

    answers: list = []
    async with producer_with(Answers(in_a_thread, in_a_thread)) as producer:
        assert (await (await acknowledged(producer, runtime))).local_transaction_state is COMMIT
        runtime.checks.ask_application(REQUEST, answers.append)
        await until(lambda: answers)
    assert answers[0].state is COMMIT
