from django.conf import settings
from django.http import HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from txbridge_django import Rollback, is_connected, send_message_in_transaction

from shop.models import Order
from txbridge import LocalTransactionState, Message, PrepareError


def place_order(message, number):
    """The local transaction: what the database does here and the message are committed together, or not at all."""
    if Order.objects.filter(number=number).exists():
        raise Rollback("this order exists")
    Order.objects.create(number=number)


@csrf_exempt
@require_POST
def place(request, number):
    try:
        result = send_message_in_transaction(Message(settings.TOPIC, number, key=number), place_order, number)
    except PrepareError:
        return JsonResponse({"error": "Kafka did not store the message; nothing has happened, try again"}, status=503)
    match result.local_transaction_state:
        case LocalTransactionState.COMMIT_MESSAGE:
            return JsonResponse({"order": number}, status=201)
        case LocalTransactionState.ROLLBACK_MESSAGE:
            return JsonResponse({"error": "this order exists"}, status=409)
        case _:
            return JsonResponse({"error": "not known yet whether the order was placed"}, status=500)


def readyz(request):
    """For a readiness probe."""
    return HttpResponse(status=200 if is_connected() else 503)
