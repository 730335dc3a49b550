"""Orders come in, and can be looked at."""

from __future__ import annotations

import json

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from .events import send
from .models import Order


@csrf_exempt  # for programs, not for browsers
@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    try:
        item = str(json.loads(request.body)["item"])
    except (ValueError, LookupError, TypeError):
        return JsonResponse({"error": 'an order is {"item": ...}'}, status=400)
    try:
        with transaction.atomic():
            order = Order.objects.create(item=item)
            send("order.placed", id=order.pk, item=item)
            if not item:
                # Raised after both were written: neither will be there.
                raise ValueError("an order is for an item")
    except ValueError as error:
        return JsonResponse({"error": str(error)}, status=422)
    return JsonResponse({"id": order.pk}, status=201)


def show_order(request: HttpRequest, order_id: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse({"id": order.pk, "item": order.item, "confirmed": order.confirmed})
