"""`isray play` in a browser: time, actions by mouse and keyboard, rewinding, files, the token, widths, reconnecting."""

from __future__ import annotations

from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from experiments.check.engine import CheckedEngine
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.runner import Runner
from tests.browser.conftest import errors, resize
from tests.browser.pages import WITHIN_S, Served, click, notice, opened, press, wait_for

UP = "state.nodes.every((it) => it.state === 'up')"


def test_time_runs_pauses_and_steps(browser: Chrome, served: Served) -> None:
    opened(browser, served)
    began = served.world.state()["now_ms"]
    assert isinstance(began, int)
    click(browser, "[data-do=run]")
    wait_for(browser, f"state.running && state.now_ms >= {began + 400}")
    click(browser, "[data-do=run]")
    wait_for(browser, "!state.running")
    stopped = browser.execute_script("return window.play.state.now_ms")
    click(browser, "[data-do=step]")
    wait_for(browser, f"state.now_ms === {stopped + 1000}")
    assert browser.find_element(By.ID, "now").text == f"{(stopped + 1000) / 1000:.3f} s"


def test_actions_by_mouse_explain_themselves_and_refusals_say_why(browser: Chrome, served: Served) -> None:
    opened(browser, served)
    click(browser, "[data-act=produce]")
    wait_for(browser, "state.partitions[0].acknowledged === 5")
    for broker, passed in ((2, 10_000), (1, 10_000)):
        click(browser, f"[data-name=broker-{broker}]")
        click(browser, "[data-act=crash]")
        wait_for(browser, f"state.nodes.find(({{ id }}) => id === {broker}).state === 'down'")
        served.world.advance(passed)
        click(browser, "[data-do=step]")
        wait_for(browser, f"!state.partitions[0].isr.includes({broker})")
    why = browser.find_element(By.ID, "sentences").text
    assert "ELR keeps broker 1 for t-0: it left an ISR below min ISR 2 with all committed records (KIP-966)" in why
    click(browser, "[data-act=crash]")
    wait_for(browser, "state.notice !== ''")
    assert notice(browser) == "Refused: broker-1 does not run"
    click(browser, "[data-act=produce]")
    wait_for(browser, "state.notice.startsWith('NOT_ENOUGH_REPLICAS')")
    assert "0 lost" in browser.find_element(By.CSS_SELECTOR, "[data-name=t-0]").text


def test_everything_goes_by_keyboard_and_rewinds(browser: Chrome, served: Served) -> None:
    opened(browser, served)
    start = browser.execute_script("return window.play.state.now_ms")
    press(browser, "w")
    wait_for(browser, "state.done.length === 1")
    chosen = "document.querySelector('.node[aria-checked=true]').dataset.name"
    while browser.execute_script(f"return {chosen}") != "broker-1":
        press(browser, "n")
    press(browser, "k")
    wait_for(browser, "state.done.length === 2 && state.nodes.some(({ state }) => state === 'down')")
    press(browser, ".")
    wait_for(browser, "state.done.length === 3")
    press(browser, ",", ",")
    wait_for(browser, f"state.done.length === 1 && state.ahead.length === 2 && {UP}")
    press(browser, Keys.HOME)
    wait_for(browser, f"state.done.length === 0 && state.now_ms === {start}")
    press(browser, ",")
    wait_for(browser, "state.notice !== ''")
    assert notice(browser) == "Refused: this is the start, before the first step"
    press(browser, ".", ".", "s")
    wait_for(browser, f"state.done.length === 3 && state.ahead.length === 0 && {UP}")
    while browser.execute_script("return document.activeElement.dataset.do") != "run":
        press(browser, Keys.TAB)
    press(browser, Keys.ENTER)
    wait_for(browser, "state.running")
    press(browser, Keys.SPACE)
    wait_for(browser, "!state.running")


def test_what_was_done_is_saved_passes_as_a_scenario_and_loads_again(
    browser: Chrome, served: Served, tmp_path: Path
) -> None:
    opened(browser, served)
    press(browser, "w", "g")
    wait_for(browser, "state.done.length === 2")
    click(browser, "[data-act=elect]")
    wait_for(browser, "state.done.length === 3")
    with urlopen(browser.find_element(By.ID, "save").get_attribute("href") or "", timeout=WITHIN_S) as response:
        saved = response.read().decode()
    file = tmp_path / "play.yaml"
    file.write_text(saved.replace("name: play", "name: once more"), encoding="utf-8")
    scenario = load_scenario(file)
    assert Runner(scenario, CheckedEngine(scenario.cluster.spec(0))).run().passed
    seed = browser.find_element(By.ID, "seed")
    seed.clear()
    seed.send_keys("7")
    browser.find_element(By.ID, "load").send_keys(str(file))
    wait_for(browser, "state.title === 'once more' && state.seed === 7 && state.ahead.length === 3")
    click(browser, "[data-do=run]")
    wait_for(browser, "state.ahead.length === 0")
    wait_for(browser, "state.partitions[0].high_watermark === 5")


@pytest.mark.parametrize(
    ("path", "data"), [("", None), ("events", None), ("scenario", None), ("act", b'{"do": "step"}')]
)
@pytest.mark.parametrize("token", ["", "?token=wrong", "?token=%C3%A4"])
def test_without_the_token_everything_is_refused(served: Served, path: str, data: bytes | None, token: str) -> None:
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(f"http://127.0.0.1:{served.server.port}/{path}{token}", data), timeout=WITHIN_S)
    assert caught.value.code == 403
    assert served.world.done == []


@pytest.mark.parametrize("width", [1400, 390])
def test_the_page_fits(browser: Chrome, served: Served, width: int) -> None:
    resize(browser, width, 900)
    opened(browser, served)
    press(browser, "w", "x", "k")
    wait_for(browser, "state.done.length === 3")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    controls = "[...document.querySelectorAll('button, select, input')]"
    outside = f"return {controls}.filter((it) => it.getBoundingClientRect().right > {width + 1}).map((it) => it.id)"
    assert browser.execute_script(outside) == []
    press(browser, "o")
    wait_for(browser, "document.querySelector('#menu').open")
    assert browser.execute_script(outside) == []
    assert browser.execute_script("return document.querySelector('#menu li button').getBoundingClientRect().left") >= 0


def test_a_second_page_follows_and_a_lost_connection_is_said_and_found_again(browser: Chrome, served: Served) -> None:
    opened(browser, served)
    first = browser.current_window_handle
    browser.switch_to.new_window("tab")
    opened(browser, served)
    press(browser, "w")
    wait_for(browser, "state.done.length === 1")
    browser.close()
    browser.switch_to.window(first)
    wait_for(browser, "state.done.length === 1")
    served.end()
    wait_for(browser, "document.getElementById('connection').classList.contains('lost')")
    press(browser, "w")
    wait_for(browser, "document.getElementById('notice').textContent.startsWith('Not done: the connection is lost')")
    again = Served(served.world, served.server.port, served.server.token)
    try:
        wait_for(browser, "!document.getElementById('connection').classList.contains('lost')")
        press(browser, "w")
        wait_for(browser, "state.done.length === 2")
    finally:
        again.end()
    wait_for(browser, "document.getElementById('connection').classList.contains('lost')")
    browser.get("about:blank")
    assert all("ERR_" in message for message in errors(browser))
