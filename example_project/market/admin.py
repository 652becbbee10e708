"""A light admin: lists to look things up in."""

from django.contrib import admin

from example_project.market.models import Market, Notification, Watch, Watcher


@admin.register(Market)
class MarketAdmin(admin.ModelAdmin):
    list_display = ("ref", "title")
    search_fields = ("ref", "title")


@admin.register(Watcher)
class WatcherAdmin(admin.ModelAdmin):
    search_fields = ("name",)


@admin.register(Watch)
class WatchAdmin(admin.ModelAdmin):
    list_display = ("watcher", "market")
    list_select_related = ("watcher", "market")
    autocomplete_fields = ("watcher", "market")


@admin.register(Notification)
class NotificationAdmin(admin.ModelAdmin):
    list_display = ("watcher", "text", "event_type", "occurred_at", "created_at")
    list_filter = ("event_type",)
    list_select_related = ("watcher",)
    autocomplete_fields = ("watcher", "market")
