"""The number of transactions in flight, and the callers that wait for room."""

from __future__ import annotations

import asyncio

from txbridge.client.flow.attempts import InFlight, Turns


def test_full_from_the_limit_down_to_its_half():
    flight = InFlight(4, 1_000)
    epochs = [flight.add_attempt(1) for _ in range(4)]
    assert (flight.is_full, flight.room) == (True, 0)
    assert [flight.remove_attempt(epoch, 1) for epoch in epochs[:2]] == [False, True]
    assert (flight.is_full, flight.room, flight.number) == (False, 2, 2)


def test_bytes_count_too_and_one_that_is_too_large_is_let_in():
    flight = InFlight(4, 1_000)
    epoch = flight.add_attempt(5_000)
    assert flight.is_full
    assert flight.remove_attempt(epoch, 5_000)
    assert not flight.is_full


def test_a_mark_is_for_those_before_it():
    flight = InFlight()
    first, second = flight.add_attempt(1), flight.add_attempt(1)
    mark = flight.set_mark()
    third = flight.add_attempt(1)
    assert flight.left_of(mark) == 2
    assert not flight.remove_attempt(third, 1) or flight.left_of(mark) == 2
    assert not flight.remove_attempt(second, 1)
    assert flight.left_of(mark) == 1
    assert flight.remove_attempt(first, 1)
    assert flight.left_of(mark) == 0
    assert flight.left_of(flight.set_mark()) == 0


async def _settled():
    """Run every task as far as possible."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_turns_come_in_order_and_never_more_than_there_is_room_for():
    turns, held, order = Turns(4, 1_000), [], []

    async def take(number):
        held.append(await turns.take_turn(1, waits=True))
        order.append(number)
        assert turns.number <= 4

    tasks = [asyncio.ensure_future(take(number)) for number in range(10)]
    await _settled()
    assert order == [0, 1, 2, 3]
    while held:
        turns.give_back(held.pop(), 1)
        await _settled()
    assert order == list(range(10))
    await asyncio.gather(*tasks)


async def test_who_is_cancelled_when_its_turn_has_come_passes_it_on():
    turns = Turns(2, 1_000)
    held = [await turns.take_turn(1, waits=True) for _ in range(2)]
    first, second, third = (asyncio.ensure_future(turns.take_turn(1, waits=True)) for _ in range(3))
    await _settled()
    turns.give_back(held[0], 1)
    # Its turn has come, but it has not run yet.
    first.cancel()
    await _settled()
    assert first.cancelled()
    assert second.done()
    assert not third.done()
    third.cancel()
    await _settled()
    turns.give_back(held[1], 1)
    turns.give_back(second.result(), 1)
    await turns.take_turn(1, waits=True)
    assert turns.number == 1


async def test_a_listener_does_not_wait_and_after_close_nobody_does():
    turns = Turns(1, 1_000)
    await turns.take_turn(1, waits=True)
    await turns.take_turn(1, waits=False)
    waiting = asyncio.ensure_future(turns.take_turn(1, waits=True))
    await _settled()
    assert not waiting.done()
    turns.close()
    await waiting
    await turns.take_turn(1, waits=True)
