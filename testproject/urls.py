from __future__ import annotations

from django.contrib import admin
from django.urls import path

from testproject.billing.views import receive

urlpatterns = [
    path("admin/", admin.site.urls),
    path("billing/messages/", receive, name="billing-messages"),
]
