from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import admin

from testproject.shop.models import Order

if TYPE_CHECKING:
    OrderModelAdmin = admin.ModelAdmin[Order]
else:
    OrderModelAdmin = admin.ModelAdmin


@admin.register(Order)
class OrderAdmin(OrderModelAdmin):
    list_display = ("number", "total", "created_at")
    search_fields = ("number",)
