from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from txbridge_django import is_connected, send_message_in_transaction

from shop.models import Order
from txbridge import Committed, DecidedBy, LocalTransactionState, Message, PrepareError, Rollback


def place_order(message, number):
    """The local transaction: what the database does here and the message are committed together, or not at all."""
    if Order.objects.filter(number=number).exists():
        raise Rollback("this order exists")
    return Committed(Order.objects.create(number=number).pk)


@csrf_exempt
@require_POST
def place(request, number):
    try:
        result = send_message_in_transaction(Message(settings.TOPIC, number, key=number), number, execute=place_order)
    except PrepareError:
        return JsonResponse({"error": "Kafka did not store the message; nothing has happened, try again"}, status=503)
    match result.local_transaction_state, result.decided_by:
        case LocalTransactionState.COMMIT_MESSAGE, _:
            return JsonResponse({"order": number, "id": result.value}, status=201)
        case LocalTransactionState.ROLLBACK_MESSAGE, DecidedBy.FUNCTION:
            return JsonResponse({"error": result.reason}, status=409)
        case LocalTransactionState.ROLLBACK_MESSAGE, DecidedBy.CHECK:
            return JsonResponse({"error": "a check was first; nothing has happened, try again"}, status=503)
        case LocalTransactionState.ROLLBACK_MESSAGE, _:
            raise result.local_exception
        case _:
            return JsonResponse({"error": "not known yet whether the order was placed"}, status=503)


def readyz(request):
    """For a readiness probe."""
    return HttpResponse(status=200 if is_connected() else 503)
