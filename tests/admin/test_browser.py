"""An operator's way through the admin in a real browser."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from leasejobs import claiming
from leasejobs.models import Job, OperatorAction
from leasejobs.states import State
from tests.factories import LEASE, job_in, whole

BROWSER = shutil.which("chromium")
DRIVER = shutil.which("chromedriver")
IS_THERE = bool(BROWSER and DRIVER and importlib.util.find_spec("selenium"))
IS_REQUIRED = os.environ.get("LEASEJOBS_BROWSER") == "required"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(
        not IS_THERE and not IS_REQUIRED, reason="chromium, its driver or selenium is not installed"
    ),
]


class Screen:
    """What an operator sees and clicks."""

    def __init__(self, driver: Any, site: str) -> None:
        self.driver = driver
        self.site = site

    def open(self, name: str, *args: Any) -> None:
        """Go to a page of ours."""
        self.driver.get(self.site + reverse(f"admin:leasejobs_{name}", args=args))

    def click(self, selector: str) -> None:
        """Click what the selector finds, once it is there, and wait until its page is there."""
        self.find(selector).click()

    def follow(self, text: str) -> None:
        """Click the link with that text."""
        self._wait().until(lambda driver: driver.find_element("link text", text)).click()

    def find(self, selector: str) -> Any:
        """Return the element, once it is there."""
        return self._wait().until(lambda driver: driver.find_element("css selector", selector))

    def wait_for(self, text: str) -> None:
        """Wait until the page says it."""
        self._wait().until(lambda driver: text in self.text)

    @property
    def text(self) -> str:
        """All text of the page."""
        return str(self.driver.find_element("tag name", "body").text)

    def _wait(self) -> Any:
        from selenium.common.exceptions import (
            NoSuchElementException,
            StaleElementReferenceException,
        )
        from selenium.webdriver.support.wait import WebDriverWait

        return WebDriverWait(
            self.driver, 20, 0.05, (NoSuchElementException, StaleElementReferenceException)
        )


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    profile = tmp_path_factory.mktemp("profile")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                     "--window-size=1400,1200", f"--user-data-dir={profile}"):  # fmt: skip
        options.add_argument(argument)
    started = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
    yield started
    started.quit()


@pytest.fixture
def screen(driver: Any, live_server: Any) -> Screen:
    client = Client()
    client.force_login(User.objects.create_superuser("boss"))
    driver.get(live_server.url + reverse("admin:login"))
    driver.delete_all_cookies()
    driver.add_cookie({"name": "sessionid", "value": client.cookies["sessionid"].value})
    return Screen(driver, live_server.url)


def test_operator_retries_a_failed_job_from_its_page_and_a_second_submit_is_stale(
    screen: Screen,
) -> None:
    job = job_in(State.FAILED, failure_code="card_expired")

    screen.open("job_changelist")
    screen.follow(str(job.pk))
    screen.wait_for("card_expired")
    screen.click("a[href*='/operate/retry/']")
    screen.find("textarea[name=reason]").send_keys("the card was renewed")
    screen.click("input[type=submit]")
    screen.wait_for("1 job was moved")

    row = whole(job)
    assert row["state"] == State.PENDING
    action = OperatorAction.objects.get()
    assert (action.actor, action.reason) == ("boss", "the card was renewed")
    screen.wait_for("the card was renewed")  # on the page of the job, too

    screen.driver.back()
    reason = screen.find("textarea[name=reason]")
    reason.clear()
    reason.send_keys("once more")
    screen.click("input[type=submit]")
    screen.wait_for("stale")
    assert whole(job) == row


def test_operator_pauses_and_resumes_a_queue(screen: Screen) -> None:
    job_in(State.PENDING, queue="mail")

    screen.open("queue_changelist")
    screen.follow("Pause")
    assert screen.find("input[name=name]").get_attribute("value") == "mail"
    screen.find("textarea[name=reason]").send_keys("maintenance")
    screen.click("input[type=submit]")
    screen.wait_for("Queue mail is paused.")
    assert "paused since" in screen.text
    assert claiming.claim_jobs("mail", holder="w", duration=LEASE, limit=1) == []

    screen.follow("Resume")
    screen.find("textarea[name=reason]").send_keys("done")
    screen.click("input[type=submit]")
    screen.wait_for("Queue mail is resumed.")
    assert len(claiming.claim_jobs("mail", holder="w", duration=LEASE, limit=1)) == 1


def test_operator_retries_terminal_failures_together(screen: Screen) -> None:
    failed = [job_in(State.FAILED, failure_code="no_route", queue=f"q{n}") for n in range(3)]
    parked = job_in(State.PARKED)

    screen.open("job_overview")
    screen.follow("Terminal failures")
    screen.wait_for("no_route")
    assert f"#{parked.pk}" not in screen.text
    screen.click("#action-toggle")
    screen.click("select[name=action] option[value=retry_jobs]")
    screen.click("button[name=index]")
    screen.wait_for("3 jobs are chosen.")
    screen.find("textarea[name=reason]").send_keys("the route is back")
    screen.click("input[type=submit]")
    screen.wait_for("3 jobs were moved")

    states = Job.objects.filter(pk__in=[job.pk for job in failed]).values_list("state", flat=True)
    assert set(states) == {State.PENDING}
    assert whole(parked)["state"] == State.PARKED
    assert screen.driver.current_url.endswith(reverse("admin:leasejobs_failedjob_changelist"))
