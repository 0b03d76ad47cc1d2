"""Tests of local transactions and checks on the database of the settings, without Kafka: `python manage.py test`."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from io import StringIO
from unittest.mock import patch

from django.conf import settings
from django.core.handlers.base import BaseHandler
from django.core.management import CommandError, call_command
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.http import HttpResponse
from django.test import RequestFactory, TestCase, TransactionTestCase, override_settings
from txbridge_django import announce, get_producer, outbox
from txbridge_django.conf import check_settings
from txbridge_django.listener import DjangoTransactionListener
from txbridge_django.models import Transaction

from shop.models import Order
from txbridge import (
    AlreadyDoneError,
    LocalTransactionState,
    Message,
    MessageExt,
    OutcomeUnknownError,
    Rollback,
    TransactionProducer,
    UsageError,
)
from txbridge.client.barrier_listener import LostTransactionError
from txbridge.testing.memory import MemoryBridge

COMMIT = LocalTransactionState.COMMIT_MESSAGE
ROLLBACK = LocalTransactionState.ROLLBACK_MESSAGE
UNKNOWN = LocalTransactionState.UNKNOWN
ID = "0123456789ABCDEF" * 2


def message(transaction_id=ID):
    return MessageExt.for_execution(Message("orders", b"v"), transaction_id, 0, 1, 2)


def place_order(message, number):
    if Order.objects.filter(number=number).exists():
        raise Rollback("this order exists")
    Order.objects.create(number=number)


class LocalTransactions(TransactionTestCase):
    def setUp(self):
        self.listener = DjangoTransactionListener("default", 0.3)

    def execute(self, function=place_order, arg="A1"):
        """What the local transaction answers, where its reason does not matter."""
        self.listener._function = function  # noqa: SLF001  as a listener of SQLAlchemy gets it
        try:
            return self.listener.execute_local_transaction(message(), arg)
        except (Rollback, LostTransactionError):
            return ROLLBACK

    def check(self):
        return self.listener.check_local_transaction(message())

    def stored(self):
        orders = sorted(Order.objects.values_list("number", flat=True))
        return orders, list(Transaction.objects.values_list("id", "state"))

    def seen_elsewhere(self):
        """What another connection sees: what was committed."""

        def see():
            try:
                return self.stored()
            finally:
                connection.close()

        with ThreadPoolExecutor(1) as executor:
            return executor.submit(see).result()

    def test_data_and_answer_are_committed_together(self):
        self.assertIs(self.execute(), COMMIT)
        self.assertEqual(self.stored(), (["A1"], [(ID, "committed")]))
        # The row is as old as its message.
        self.assertEqual(Transaction.objects.get().created_at, 2)
        self.assertIs(self.check(), COMMIT)
        # A second call does not execute it again.
        self.assertIs(self.execute(arg="A2"), COMMIT)
        self.assertEqual(self.stored(), (["A1"], [(ID, "committed")]))

    def test_the_function_can_roll_back(self):
        def refuse(how):
            def run(message, number):
                place_order(message, number)
                if how == "rollback":
                    raise Rollback
                if how == "set_rollback":
                    transaction.set_rollback(True)
                    return True
                return False

            return run

        for how in ("False", "rollback", "set_rollback"):
            with self.subTest(how):
                Transaction.objects.all().delete()
                self.assertIs(self.execute(refuse(how)), ROLLBACK)
                self.assertEqual(self.stored(), ([], []))
                self.assertIs(self.check(), ROLLBACK)
                self.assertEqual(self.stored(), ([], [(ID, "rolled back")]))
                self.assertIs(self.execute(), ROLLBACK)
                self.assertEqual(self.stored(), ([], [(ID, "rolled back")]))

    def test_another_exception_gets_out_after_the_rollback(self):
        def fail(message, number):
            place_order(message, number)
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.execute(fail)
        self.assertEqual(self.stored(), ([], []))
        self.assertIs(self.check(), ROLLBACK)

    def test_an_answer_that_may_be_a_mistake_is_rolled_back(self):
        for answer in (COMMIT, 0, "no"):
            with self.assertRaisesRegex(UsageError, "returns None or True to commit"):
                self.execute(lambda message, number, answer=answer: answer)
        self.assertEqual(self.stored(), ([], []))

    def test_an_error_that_was_caught_is_no_commit(self):
        Order.objects.create(number="A0")

        def swallow(message, number):
            place_order(message, number)
            with suppress(DatabaseError), connection.cursor() as cursor:
                if connection.vendor == "sqlite":
                    cursor.execute("INSERT OR ROLLBACK INTO shop_order (number) VALUES ('A0')")
                cursor.execute("INSERT INTO shop_order (number) VALUES ('A0')")

        self.assertIs(self.execute(swallow), ROLLBACK)
        self.assertEqual(self.stored(), (["A0"], []))

    def test_an_error_of_the_orm_that_was_caught_is_no_commit_and_gets_a_warning(self):
        Order.objects.create(number="A0")

        def swallow(message, number):
            place_order(message, number)
            with suppress(IntegrityError):
                Order.objects.create(number="A0")

        for _ in range(2):
            Transaction.objects.all().delete()
            with self.assertLogs("txbridge.client", "WARNING") as logs:
                self.assertIs(self.execute(swallow), ROLLBACK)
            self.assertIn("the body caught an error that ended its transaction", logs.output[0])
            self.assertEqual(self.seen_elsewhere(), (["A0"], []))

        def wish(message, number):
            place_order(message, number)
            transaction.set_rollback(True)

        # The error of an earlier transaction is no reason for a warning.
        Transaction.objects.all().delete()
        with self.assertNoLogs("txbridge.client", "WARNING"):
            self.assertIs(self.execute(wish), ROLLBACK)

    def test_what_the_function_has_committed_by_text_is_committed(self):
        def commit(gives_up):
            def run(message, number):
                place_order(message, number)
                with connection.cursor() as cursor:
                    cursor.execute("COMMIT")
                return gives_up()

            return run

        def give_up():
            raise Rollback

        for gives_up in (lambda: None, lambda: False, give_up, lambda: transaction.set_rollback(True)):
            Transaction.objects.all().delete()
            Order.objects.all().delete()
            self.assertIs(self.execute(commit(gives_up)), COMMIT)
            self.assertEqual(self.seen_elsewhere(), (["A1"], [(ID, "committed")]))
            self.assertIs(self.check(), COMMIT)

    def test_no_statement_commits_by_itself_after_the_end_of_the_transaction(self):
        def end(message, number):
            with connection.cursor() as cursor:
                cursor.execute("ROLLBACK")
            with suppress(DatabaseError):
                place_order(message, number)

        self.assertIs(self.execute(end), ROLLBACK)
        self.assertEqual(self.seen_elsewhere(), ([], []))

    def test_an_atomic_block_that_is_left_open_is_no_commit(self):
        def leave_open(message, number):
            transaction.atomic().__enter__()
            place_order(message, number)
            if number == "error":
                raise ZeroDivisionError

        with self.assertLogs("txbridge.client", "WARNING") as logs:
            self.assertIs(self.execute(leave_open), ROLLBACK)
        self.assertIn("has entered an atomic() that it has not left", logs.output[0])
        self.assertEqual(self.seen_elsewhere(), ([], []))
        Transaction.objects.all().delete()
        with self.assertRaises(ZeroDivisionError):
            self.execute(leave_open, "error")
        self.assertIs(self.check(), ROLLBACK)
        self.assertEqual(self.seen_elsewhere(), ([], [(ID, "rolled back")]))

    def test_the_row_of_a_check_is_committed_with_autocommit_off_too(self):
        transaction.set_autocommit(False)
        self.assertIs(self.check(), ROLLBACK)
        self.assertEqual(self.seen_elsewhere(), ([], [(ID, "rolled back")]))
        Transaction.objects.all().delete()
        connection.close()
        with patch.dict(connection.settings_dict, AUTOCOMMIT=False), self.assertRaisesRegex(UsageError, "autocommit"):
            self.check()
        connection.close()
        self.assertEqual(self.seen_elsewhere(), ([], []))

    def test_with_autocommit_off_nothing_is_executed(self):
        transaction.set_autocommit(False)
        try:
            with self.assertRaisesRegex(UsageError, r"autocommit is off.*call transaction.set_autocommit\(True\)"):
                self.execute()
            self.assertEqual(self.seen_elsewhere(), ([], []))
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    def test_a_table_without_transactions_is_refused(self):
        """As MySQL's MyISAM: after ROLLBACK the row is there."""
        self.listener.verify()
        before = self.stored()
        backend = type(connections["default"])
        with (
            patch.object(backend, "_rollback", lambda given: given.connection.commit()),
            self.assertRaisesRegex(UsageError, "the table does not support transactions"),
        ):
            self.listener.verify()
        self.assertEqual(self.seen_elsewhere(), before)

    def test_an_error_in_a_savepoint_is_the_functions_own_business(self):
        def contain(message, number):
            place_order(message, number)
            with suppress(IntegrityError), transaction.atomic():
                Order.objects.create(number=number)

        self.assertIs(self.execute(contain), COMMIT)
        self.assertEqual(self.stored(), (["A1"], [(ID, "committed")]))

    def test_hooks_run_after_the_commit(self):
        seen = []

        def hook(message, number):
            place_order(message, number)
            transaction.on_commit(lambda: seen.append(self.stored()))

        self.assertIs(self.execute(hook), COMMIT)
        self.assertEqual(seen, [(["A1"], [(ID, "committed")])])

    def test_a_transaction_that_runs_is_not_judged(self):
        entered, go_on, answers = threading.Event(), threading.Event(), []

        def slow(message, number):
            place_order(message, number)
            entered.set()
            go_on.wait(120)

        def run():
            try:
                answers.append(self.execute(slow))
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        thread.start()
        self.assertTrue(entered.wait(120))
        self.assertIs(self.check(), UNKNOWN)
        go_on.set()
        thread.join(120)
        self.assertEqual(answers, [COMMIT])
        self.assertIs(self.check(), COMMIT)
        connection.close()

    def asked(self, barrier_id, age_s=90):
        """The message of a check, `age_s` seconds after the birth of the message."""
        made = message()
        object.__setattr__(made, "barrier_id", barrier_id)
        object.__setattr__(made, "check_timestamp", made.born_timestamp + age_s * 1000)
        return made

    def test_a_young_message_without_a_row_is_not_judged(self):
        another = DjangoTransactionListener("default", 0.3)
        self.assertIs(another.check_local_transaction(self.asked(self.listener.barrier_id(), 59)), UNKNOWN)
        self.assertIs(self.execute(), COMMIT)
        self.assertIs(another.check_local_transaction(self.asked(self.listener.barrier_id(), 59)), COMMIT)
        Transaction.objects.filter(id=ID).delete()
        self.assertIs(another.check_local_transaction(self.asked(self.listener.barrier_id(), 60)), ROLLBACK)
        self.assertIs(self.execute(), ROLLBACK)

    def test_a_process_whose_transaction_failed_answers_for_itself_at_once(self):
        def fail(message, number):
            raise ZeroDivisionError

        with self.assertRaises(ZeroDivisionError):
            self.execute(fail)
        self.assertIs(self.listener.check_local_transaction(self.asked(self.listener.barrier_id(), 6)), ROLLBACK)

    def test_another_database_is_not_answered_for(self):
        its = self.listener.barrier_id()
        self.assertEqual(Transaction.objects.get().state, its)
        self.assertEqual(DjangoTransactionListener("default", 0.3).barrier_id(), its)
        with self.assertLogs("txbridge.client", "ERROR") as logged:
            self.assertIs(self.listener.check_local_transaction(self.asked("another")), UNKNOWN)
        self.assertIn("barrier_of_message=another barrier_here=" + its, logged.output[0])
        # The purge leaves the identity, and an emptied table has lost it with its rows.
        call_command("txbridge_purge", "--older-than=1d", stdout=StringIO())
        self.assertEqual(Transaction.objects.get(id="barrier").state, its)
        Transaction.objects.all().delete()
        self.assertIs(self.listener.check_local_transaction(self.asked(its)), UNKNOWN)
        self.assertNotEqual(self.listener.barrier_id(), its)

    def test_purge(self):
        now, day = time.time_ns() // 1_000_000, 86_400_000
        for number, (state, days) in enumerate(
            (("committed", 0), ("committed", 7), ("committed", 9), ("rolled back", 9), ("rolled back", 37))
        ):
            Transaction.objects.create(id=f"{number}", state=state, created_at=now - days * day)
        out = StringIO()
        call_command("txbridge_purge", "--dry-run", stdout=out)
        self.assertEqual(Transaction.objects.count(), 5)
        call_command("txbridge_purge", stdout=out)
        self.assertEqual(out.getvalue(), "2 rows would be deleted\n2 rows deleted\n")
        call_command("txbridge_purge", "--older-than=6d", stdout=out)
        left = Transaction.objects.exclude(id="purged").order_by("id")
        self.assertEqual(list(left.values_list("id", flat=True)), ["0", "3"])
        for age, said in (("6", "--older-than takes a number and a unit"), ("59m", "must be an hour at least")):
            with self.assertRaisesRegex(CommandError, said):
                call_command("txbridge_purge", f"--older-than={age}")
        # A project that only writes to the outbox.
        with override_settings(TXBRIDGE={}):
            call_command("txbridge_purge", "--older-than=6d", stdout=out)
        with override_settings(TXBRIDGE={"DATABASE": "x"}), self.assertRaisesRegex(CommandError, "names 'x'"):
            call_command("txbridge_purge")

    def test_a_check_after_a_purge_rolls_nothing_back_that_may_have_been_committed(self):
        its = self.listener.barrier_id()
        self.assertIs(self.execute(), COMMIT)
        self.assertEqual(Transaction.objects.get(id=ID).created_at, 2)
        # Ages count from the newest row.
        Transaction.objects.create(id="young", state="committed", created_at=time.time_ns() // 1_000_000)
        call_command("txbridge_purge", "--older-than=1d", stdout=StringIO())
        self.assertFalse(Transaction.objects.filter(id=ID).exists())
        with self.assertLogs("txbridge.client", "ERROR") as logged:
            self.assertIs(self.listener.check_local_transaction(self.asked(its, 600)), UNKNOWN)
        self.assertIn("check_after_purge", logged.output[0])
        self.assertFalse(Transaction.objects.filter(id=ID).exists())

    def test_a_send_within_a_transaction_is_refused_before_anything_is_sent(self):
        def send(*_):
            announce(Message("orders", b"v"))

        for options in ({}, {"durable": True}, {"savepoint": False}):
            with transaction.atomic(**options), self.assertRaisesRegex(UsageError, "within transaction.atomic"):
                send()
        transaction.set_autocommit(False)
        with self.assertRaisesRegex(UsageError, "autocommit is off"):
            send()
        with transaction.atomic(), self.assertRaisesRegex(UsageError, "within transaction.atomic"):
            send()
        transaction.rollback()
        transaction.set_autocommit(True)

        def view(request):
            send()
            return HttpResponse()

        with patch.dict(connection.settings_dict, ATOMIC_REQUESTS=True):
            atomic = BaseHandler().make_view_atomic(view)
            with self.assertRaisesRegex(UsageError, "non_atomic_requests"):
                atomic(RequestFactory().post("/"))
        self.assertEqual(self.seen_elsewhere(), ([], []))

    def test_a_send_that_django_could_not_run_is_refused_before_anything_is_sent(self):
        async def view():
            announce(Message("orders", b"v"))

        async def add():
            outbox.add(Message("orders", b"v"))

        async def start():
            get_producer()

        with patch.object(TransactionProducer, "start") as started:
            for call in (view, add, start):
                with self.assertRaisesRegex(UsageError, r"on an event loop.*await sync_to_async\(function\)"):
                    asyncio.run(call())
        started.assert_not_called()


class Announcements(TransactionTestCase):
    """The views, with a bridge in memory in place of Kafka. Each test has a producer of its own."""

    def setUp(self):
        self.bridge = self.enterContext(MemoryBridge())
        self.enterContext(override_settings(TXBRIDGE={**settings.TXBRIDGE, "KAFKA": self.bridge.settings}))

    def announced(self):
        return [message.value() for message in self.bridge.delivered(settings.TOPIC)]

    def test_an_order_is_announced_although_its_decision_is_lost(self):
        self.bridge.lose_decision()
        self.assertEqual(self.client.post("/orders/A1").status_code, 201)
        self.assertEqual(self.announced(), [])
        self.assertEqual(self.bridge.let_checks_be_due(), 1)
        self.assertEqual(self.announced(), [b"A1"])

    def test_an_order_that_exists_is_not_announced_again(self):
        self.assertEqual(self.client.post("/orders/A1").status_code, 201)
        self.assertEqual(self.client.post("/orders/A1").status_code, 409)
        self.assertEqual(self.announced(), [b"A1"])

    def test_an_error_of_the_view_is_a_server_error_and_rolled_back_at_once(self):
        self.client.raise_request_exception = False
        with patch.object(Order.objects, "create", side_effect=KeyError("A1")):
            self.assertEqual(self.client.post("/orders/A1").status_code, 500)
        self.assertEqual(self.bridge.list_pending(), [])
        self.assertEqual(self.client.post("/orders/A1").status_code, 201)

    def test_what_a_block_does_and_its_messages_happen_together(self):
        with announce(Message(settings.TOPIC, "A1"), Message(settings.TOPIC, "reminder", delay=20)) as tx:
            Order.objects.create(number="A1")
        self.assertEqual((tx.is_committed, Order.objects.count()), (True, 1))
        self.bridge.advance(20)
        self.assertEqual(self.announced(), [b"A1", b"reminder"])

    def test_a_key_is_done_once(self):
        with announce(Message(settings.TOPIC, "A1"), once="order A1") as tx:
            Order.objects.create(number="A1")
        with self.assertRaises(AlreadyDoneError) as raised, announce(Message(settings.TOPIC, "A1"), once="order A1"):
            self.fail("the block was run")
        self.assertEqual(raised.exception.transaction_id, tx.transaction_id)
        # As it is if the other one was committed between the look and the transaction.
        looked = patch.object(
            DjangoTransactionListener, "refuse_repeat", side_effect=[None, AlreadyDoneError(tx.transaction_id)]
        )
        with looked, self.assertRaises(AlreadyDoneError), announce(Message(settings.TOPIC, "A1"), once="order A1"):
            self.fail("the block was run")
        self.assertEqual((self.announced(), self.bridge.list_pending()), ([b"A1"], []))

    def test_an_exception_comes_out_and_set_rollback_is_one(self):
        for error, fails in ((KeyError("A1"), None), (Rollback, transaction.set_rollback)):
            with self.assertRaises(type(error) if fails is None else error), announce(Message(settings.TOPIC, "A1")):
                Order.objects.create(number="A1")
                if fails is None:
                    raise error
                fails(True)
        self.assertEqual((self.bridge.list_pending(), self.announced(), Order.objects.count()), ([], [], 0))

    def test_a_block_that_has_committed_is_decided_by_a_check(self):
        with self.assertRaises(OutcomeUnknownError), announce(Message(settings.TOPIC, "A1")):
            Order.objects.create(number="A1")
            with connection.cursor() as cursor:
                cursor.execute("COMMIT")
        self.bridge.advance(300)
        self.assertEqual((self.announced(), Order.objects.count()), ([b"A1"], 1))

    def test_while_kafka_is_away_nothing_is_stored(self):
        self.bridge.stop()
        self.assertEqual(self.client.post("/orders/A1").status_code, 503)
        self.assertFalse(Order.objects.exists())


class Inside(TestCase):
    """A test case is a transaction of its own: what is committed within it is so for the test."""

    def setUp(self):
        self.bridge = self.enterContext(MemoryBridge())
        self.bridge.relay(outbox.take_rows)

    def announce_twice(self):
        with announce(Message("orders", "A1", key="A1"), once="A1"):
            Order.objects.create(number="A1")
        with self.assertRaises(AlreadyDoneError), announce(Message("orders", "A1"), once="A1"):
            self.fail("the block was run")
        with self.assertRaises(KeyError), announce(Message("orders", "A2")):
            Order.objects.create(number="A2")
            raise KeyError
        self.assertEqual(Order.objects.count(), 1)

    def test_announcements_by_kafka(self):
        with override_settings(TXBRIDGE={**settings.TXBRIDGE, "KAFKA": self.bridge.settings}):
            self.bridge.lose_decision()
            self.announce_twice()
            self.bridge.assert_announced("orders", count=0)
            self.bridge.let_checks_be_due()
            self.bridge.assert_announced("orders", "A1")

    def test_announcements_by_the_outbox_need_no_kafka(self):
        with override_settings(TXBRIDGE={}):
            self.announce_twice()
            for error in (None, KeyError, Rollback):
                with self.assertRaises(error) if error else nullcontext(), announce() as tx:
                    order = Order.objects.create(number=f"B{error and error.__name__}")
                    tx.add(Message("bills", f"{order.pk}", delay=20))
                    if error is KeyError:
                        raise KeyError
                    transaction.set_rollback(error is Rollback)
            with transaction.atomic():
                outbox.add(Message("orders", '{"id": 3}'))
        self.bridge.assert_announced("orders", "A1", key="A1")
        self.bridge.assert_announced("orders", count=2)
        self.bridge.assert_announced("orders", {"id": 3})
        self.bridge.assert_announced("bills", count=0)
        self.bridge.advance(20)
        self.bridge.assert_announced("bills", str(Order.objects.get(number="BNone").pk))


class Settings(TransactionTestCase):
    def test_models_and_migrations_agree(self):
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)

    def test_mistakes_get_a_sentence(self):
        kafka = {"bootstrap.servers": "127.0.0.1:1"}
        for given, said in (
            (None, "TXBRIDGE is missing"),
            ({"KAFKA": kafka}, "TXBRIDGE['GROUP'] is missing"),
            ({"GROUP": "a", "KAFKA": kafka, "NAMESPASE": ""}, "TXBRIDGE['NAMESPASE'] does not exist: NAMESPACE?"),
            ({"GROUP": "a", "KAFKA": "127.0.0.1:1"}, "Kafka's settings are a dict"),
            ({"GROUP": "a b", "KAFKA": kafka}, "'a b' cannot be a producer group"),
            ({"GROUP": "a", "KAFKA": kafka, "DATABASE": "x"}, "names 'x', which is not in DATABASES"),
            ({"GROUP": "a", "KAFKA": kafka, "CHECK_WAIT": 0}, "TXBRIDGE['CHECK_WAIT'] must be positive"),
            ({"GROUP": "a", "KAFKA": kafka, "PATIENCE": "60"}, "TXBRIDGE['PATIENCE']: patience must be a number"),
        ):
            with self.subTest(said), override_settings(TXBRIDGE=given):
                self.assertIn(said, "\n".join(error.msg for error in check_settings()))
                with self.assertRaises(UsageError) as caught:
                    get_producer()
                self.assertIn(said, str(caught.exception))
        with patch.dict(connection.settings_dict, AUTOCOMMIT=False):
            self.assertIn("DATABASES['default'] has AUTOCOMMIT = False", check_settings()[0].msg)
            with self.assertRaisesRegex(CommandError, "AUTOCOMMIT"):
                call_command("txbridge_purge")
        self.assertEqual(check_settings(), [])

    def test_a_missing_table_is_named(self):
        with connection.schema_editor() as editor:
            editor.delete_model(Transaction)
        try:
            with self.assertRaisesRegex(UsageError, "manage.py migrate"):
                get_producer()
        finally:
            with connection.schema_editor() as editor:
                editor.create_model(Transaction)
