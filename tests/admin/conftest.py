"""Members of staff with just the permissions a test gives them."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

READING = ("view_job", "view_attempt", "view_queue", "view_operatoraction")


def staff_client(*codenames: str) -> Client:
    """Return a client of a member of staff called "olga" with these permissions of ours."""
    user = User.objects.create_user("olga", is_staff=True)
    ours = Permission.objects.filter(content_type__app_label="leasejobs")
    user.user_permissions.set(ours.filter(codename__in=codenames))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def staff(db: Any) -> Callable[..., Client]:
    """Return a function that makes a client of somebody with the given permissions."""
    return staff_client


@pytest.fixture
def reader(db: Any) -> Client:
    """Return a client of somebody who may view everything ordinary and do nothing."""
    return staff_client(*READING)


@pytest.fixture
def admin_user(db: Any) -> User:
    """Return a superuser: without a password, whose hash would take most of a test's time."""
    return User.objects.create_superuser("boss")
