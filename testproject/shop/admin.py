from __future__ import annotations

from django.contrib import admin

from testproject.shop.models import Order


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin[Order]):
    list_display = ("number", "total", "created_at")
    search_fields = ("number",)
