"""The URLs of the views."""

from django.urls import path

from .views import place_order, show_order

urlpatterns = [path("orders", place_order), path("orders/<int:order_id>", show_order)]
