"""A served page of a cluster, and what tests do on it."""

from __future__ import annotations

import threading

from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from experiments.play.server import PlayServer
from experiments.play.world import World

WITHIN_S = 12


class Served:
    """A server in a thread of its own, which can be ended and begun again at the same address."""

    def __init__(self, world: World, port: int = 0, token: str = "") -> None:
        self.world = world
        self.server = PlayServer(world, port, token)
        self.thread = threading.Thread(target=self.server.serve)
        self.thread.start()

    def end(self) -> None:
        self.server.stop()
        self.thread.join(WITHIN_S)
        assert not self.thread.is_alive()


def wait_for(browser: Chrome, condition: str, within_s: float = WITHIN_S) -> None:
    """Waits until a condition in JavaScript on `state`, what the page shows, holds."""
    script = f"const state = window.play?.state; return Boolean(state && ({condition}))"
    WebDriverWait(browser, within_s, poll_frequency=0.02).until(lambda it: it.execute_script(script))


def opened(browser: Chrome, served: Served) -> None:
    browser.get(served.server.url)
    wait_for(browser, "window.play.explorer")


def press(browser: Chrome, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def click(browser: Chrome, selector: str) -> None:
    browser.find_element(By.CSS_SELECTOR, selector).click()


def notice(browser: Chrome) -> str:
    return browser.find_element(By.ID, "notice").text


def choose_node(browser: Chrome, name: str) -> None:
    for _ in range(9):
        if browser.execute_script("return document.querySelector('.node[aria-checked=true]').dataset.name") == name:
            return
        press(browser, "n")
    raise AssertionError(f"{name} is not reached")
