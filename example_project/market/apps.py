"""The app's configuration."""

from django.apps import AppConfig


class MarketConfig(AppConfig):
    """Markets, who watches them, and what they were told."""

    name = "example_project.market"
    label = "market"
    verbose_name = "Prediction market"
    default_auto_field = "django.db.models.BigAutoField"
