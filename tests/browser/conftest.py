"""One headless Chromium for all tests of pages. Each test begins with an empty tab of 1400 by 900 pixels, and fails if
its pages wrote an error to the console, or asked for anything but what is on this machine.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from experiments.play.session import DEFAULT, SimWorld
from tests.browser.pages import Served

LOCAL = ("file:", "data:", "blob:", "about:", "chrome:", "http://127.0.0.1:")


@pytest.fixture(scope="session")
def chromium() -> Iterator[webdriver.Chrome]:
    """The browser. It and its driver are Debian's packages `chromium` and `chromium-driver`."""
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    assert program is not None, "chromium is not installed"
    assert driver is not None, "chromedriver is not installed"
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=Service(driver))
    yield found
    found.quit()


@pytest.fixture
def browser(chromium: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """The browser for one test."""
    chromium.get("about:blank")
    resize(chromium, 1400, 900)
    requests(chromium)
    errors(chromium)
    yield chromium
    chromium.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    chromium.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert errors(chromium) == []
    assert [url for url in requests(chromium) if not url.startswith(LOCAL)] == []


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A new simulated cluster, and its server for one test. The browser leaves the page before the server ends."""
    found = Served(SimWorld(DEFAULT))
    yield found
    if "browser" in request.fixturenames:
        request.getfixturevalue("browser").get("about:blank")
    found.end()


def resize(browser: webdriver.Chrome, width: int, height: int) -> None:
    """Gives the page this size in CSS pixels, as a phone has them too."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def errors(browser: webdriver.Chrome) -> list[str]:
    """What pages wrote to the console as errors since the last call."""
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]


def requests(browser: webdriver.Chrome) -> list[str]:
    """The addresses that pages asked for since the last call."""
    messages = (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
    return [it["params"]["request"]["url"] for it in messages if it["method"] == "Network.requestWillBeSent"]
