from django.conf import settings
from django.db import IntegrityError
from django.http import HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST
from txbridge_django import announce, is_connected

from shop.models import Order
from txbridge import Message


@csrf_exempt
@require_POST
def place(request, number):
    try:
        with announce(Message(settings.TOPIC, number, key=number)):
            order = Order.objects.create(number=number)
    except IntegrityError:
        return JsonResponse({"error": "this order exists"}, status=409)
    return JsonResponse({"order": number, "id": order.pk}, status=201)


def readyz(request):
    """For a readiness probe."""
    return HttpResponse(status=200 if is_connected() else 503)
