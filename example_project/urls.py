"""The example project's pages: for now the admin, and /metrics where django-prometheus is."""

from django.apps import apps
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("admin/", admin.site.urls),
    path("", RedirectView.as_view(pattern_name="admin:index")),
]
if apps.is_installed("django_prometheus"):
    urlpatterns.append(path("", include("django_prometheus.urls")))
