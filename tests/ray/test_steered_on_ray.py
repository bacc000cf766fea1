"""`isray console`: a running cluster, steered from a page in a browser, while another operator acts on it as well."""

from __future__ import annotations

import re
import signal
from subprocess import PIPE

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.browser.conftest import browser, chromium, errors
from tests.browser.pages import choose_node, notice, press, wait_for
from tests.ray.cluster_helpers import FAST_OPTIONS
from tests.ray.command_helpers import Shell

WITHIN_S = 60
__all__ = ["browser", "chromium"]


def test_a_running_cluster_is_steered_and_followed(shell: Shell, browser: Chrome) -> None:
    shell.json("up", "--detach", "--brokers", "3", *FAST_OPTIONS)
    created = ("topics", "--create", "--topic", "t", "--replica-assignment", "0:1:2")
    shell.ok(*created, "--config", "min.insync.replicas=2")
    console = shell.begin("console", output=PIPE)
    try:
        assert console.stdout is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", console.stdout.readline())
        assert found is not None
        browser.get(found[0])
        check_steering(shell, browser)
    finally:
        console.send_signal(signal.SIGINT)
        code = console.wait(WITHIN_S)
    assert code == 0
    wait_for(browser, "document.getElementById('connection').classList.contains('lost')", WITHIN_S)
    browser.get("about:blank")
    assert all("ERR_" in message for message in errors(browser))
    assert all(row["state"] == "running" for row in shell.json("node", "list")), "the cluster goes on"


def check_steering(shell: Shell, browser: Chrome) -> None:
    """Writes, a kill that is explained, a refusal, another operator's start, and a client in the background."""
    wait_for(browser, "state.partitions[0]?.isr.length === 3 && state.partitions[0].min_isr === 2", WITHIN_S)
    check_what_it_cannot_do(browser)
    press(browser, "w")
    wait_for(browser, "state.partitions[0].acknowledged === 5 && state.partitions[0].lost_acked === 0", WITHIN_S)
    choose_node(browser, "broker-2")
    press(browser, "k")
    wait_for(browser, "state.partitions[0].isr.join() === '0,1'", WITHIN_S)
    why = "/^Broker 2 leaves the ISR of t-0, since .*; ISR is \\{0 1\\}$/"  # its session and its lag end after 2 s both
    wait_for(browser, f"state.sentences.some(({{ text }}) => {why}.test(text))", WITHIN_S)
    press(browser, "k")
    wait_for(browser, "state.notice !== ''", WITHIN_S)
    assert notice(browser) == "Refused: broker-2 does not run"
    shell.ok("node", "start", "broker-2")
    wait_for(browser, "state.partitions[0].isr.length === 3", WITHIN_S)
    press(browser, "l")
    wait_for(browser, "state.partitions[0].acknowledged > 5", WITHIN_S)


def check_what_it_cannot_do(browser: Chrome) -> None:
    """Buttons of virtual time are disabled and say why, and so do their keys."""
    step = browser.find_element(By.CSS_SELECTOR, "[data-do=step]")
    assert step.get_attribute("aria-disabled") == "true"
    assert (step.get_attribute("title") or "").startswith("A running cluster has its own time")
    press(browser, ".")
    assert notice(browser).startswith("Refused: A running cluster has its own time")
