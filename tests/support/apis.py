"""The client's APIs (blocking, pipelined, asyncio) with one blocking interface, so that one test suite covers all."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from txbridge import AsyncTransactionListener, AsyncTransactionProducer, TransactionProducer


class Blocking(TransactionProducer):
    """`send_message_in_transaction`."""

    send = TransactionProducer.send_message_in_transaction

    @property
    def runtime(self):
        return self._lifetime.runtime

    def end_loop(self):
        """Nothing to do: there is no loop."""


class Pipelined(Blocking):
    """`submit_message_in_transaction` with two threads, so that a listener method may wait for another transaction."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, execute_thread_pool_max_size=2, **options)

    def send(self, message, arg=None, **options):
        return self.submit_message_in_transaction(message, arg, **options).result()


class _Coroutines(AsyncTransactionListener):
    """A blocking listener whose methods are called from coroutines."""

    def __init__(self, listener):
        self._listener, self.forwarding = listener, listener.forwarding

    async def execute_local_transaction(self, message, arg):
        return await self._call(self._listener.execute_local_transaction, message, arg)

    async def check_local_transaction(self, message):
        return await self._call(self._listener.check_local_transaction, message)

    async def barrier_id(self):
        return await self._call(self._listener.barrier_id)

    @staticmethod
    async def _call(method, *arguments):
        answer, error = await asyncio.to_thread(_caught, method, *arguments)
        if error is not None:
            raise error
        return answer


def _caught(method, *arguments):
    try:
        return method(*arguments), None
    except BaseException as error:
        return None, error


class Asyncio:
    """AsyncTransactionProducer with coroutines as listener methods, on a loop in a thread of its own."""

    wraps = _Coroutines

    def __init__(self, group, listener, settings, **options):
        self.api = AsyncTransactionProducer(group, self.wraps(listener), settings, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self):
        self._await(self.api.start())
        return self

    def send(self, message, arg=None, **options):
        return _Result(self._await(self.api.send_message_in_transaction(message, arg, **options)), self._await)

    def cancel(self, *given):
        return self._await(self.api.cancel(*given))

    def flush(self, timeout=None):
        return self._await(self.api.flush(timeout))

    def close(self, timeout=None):
        self._await(self.api.close(timeout))

    @property
    def is_connected(self):
        return self.api.is_connected

    @property
    def runtime(self):
        return self.api._lifetime.runtime

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.close()

    def end_loop(self):
        """End the loop as asyncio.run does."""
        self._await(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _await(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def _run(self):
        while True:
            # These exceptions end a loop. The tests look at the remaining transactions, so the loop runs on.
            with suppress(KeyboardInterrupt, SystemExit):
                self._loop.run_forever()
                return


class AsyncioPlain(Asyncio):
    """AsyncTransactionProducer with a TransactionListener, whose methods are no coroutines."""

    wraps = staticmethod(lambda listener: listener)


class _Result:
    def __init__(self, result, wait):
        self._result, self._wait = result, wait

    def __getattr__(self, name):
        return getattr(self._result, name)

    def wait(self, timeout=None):
        self._wait(self._result.wait(timeout))


APIS = (Blocking, Pipelined, Asyncio)
