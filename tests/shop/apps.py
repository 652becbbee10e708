"""The app `shop`, installed for the suite only; without migrations."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The app as the pages call it."""

    name = "tests.shop"
    label = "shop"
    default_auto_field = "django.db.models.BigAutoField"
