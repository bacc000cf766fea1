"""A lesson of `isray play` followed in a browser by keyboard only, its answer, and actions with options."""

from __future__ import annotations

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.by import By

from tests.browser.conftest import resize
from tests.browser.pages import Served, choose_node, click, notice, opened, press, wait_for


def tab_to(browser: Chrome, condition: str) -> None:
    """Presses Tab until the element that has the focus, `it`, is the one that is wanted."""
    for _ in range(80):
        if browser.execute_script(f"const it = document.activeElement; return Boolean({condition})"):
            return
        press(browser, Keys.TAB)
    raise AssertionError(f"no element with the focus has {condition}")


@pytest.mark.parametrize("width", [1400, 390])
def test_a_lesson_is_followed_by_keyboard_only(browser: Chrome, served: Served, width: int) -> None:
    resize(browser, width, 900)
    opened(browser, served)
    press(browser, "o")
    tab_to(browser, "it.dataset.lesson === 'elr'")
    press(browser, Keys.ENTER)
    wait_for(browser, "state.lesson?.name === 'elr' && state.lesson.goals.every((it) => !it.reached)")
    assert "What the ELR keeps" in browser.find_element(By.ID, "lesson").text
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    press(browser, "w")
    wait_for(browser, "state.lesson.goals[0].reached")
    for place, broker in ((1, "broker-2"), (2, "broker-1")):
        choose_node(browser, broker)
        press(browser, "t")
        wait_for(browser, f"state.lesson.goals[{place}].reached")
    tab_to(browser, "it.tagName === 'SUMMARY' && it.textContent === 'Hint 2'")
    press(browser, Keys.ENTER)
    assert "Its session ends after 9 s." in browser.find_element(By.ID, "lesson").text
    choose_node(browser, "broker-0")
    press(browser, "k", *"." * 12)
    wait_for(browser, "state.lesson.goals[3].reached")
    assert "Its session ends after 9 s." in browser.find_element(By.ID, "lesson").text, "the hint stays open"
    choose_node(browser, "broker-2")
    press(browser, "s", ".")
    wait_for(browser, "state.lesson.goals[4].reached")
    choose_node(browser, "broker-1")
    press(browser, "s", ".", ".")
    wait_for(browser, "state.lesson.goals.every((it) => it.reached)")
    assert "All reached." in browser.find_element(By.ID, "lesson").text
    tab_to(browser, "it.dataset.focus === 'next'")
    press(browser, Keys.ENTER)
    wait_for(browser, "state.lesson.name === 'last-replica-standing' && state.done.length === 0")


def test_the_answer_is_shown_step_by_step_and_free_play_begins_again(browser: Chrome, served: Served) -> None:
    opened(browser, served)
    press(browser, "o")
    click(browser, "[data-lesson=controller-disk]")
    wait_for(browser, "state.lesson?.name === 'controller-disk'")
    click(browser, "[data-focus=answer]")
    wait_for(browser, "state.ahead.length === 8")
    press(browser, *"." * 8)
    wait_for(browser, "state.ahead.length === 0 && state.lesson.goals.every((it) => it.reached)")
    press(browser, "o")
    click(browser, "[data-lesson='']")
    wait_for(browser, "state.lesson === null && state.title === 'play'")
    assert not browser.find_element(By.ID, "lesson").is_displayed()


def test_losses_of_records_one_way_cuts_designation_load_and_cancelling_are_actions(
    browser: Chrome, served: Served
) -> None:
    opened(browser, served)
    press(browser, "w")
    choose_node(browser, "broker-2")
    browser.execute_script(
        "for (const [id, value] of Object.entries({lose: 'records', 'lost-records': 3, peer: 'controllers',"
        " direction: 'from', rate: 10, seconds: 2, election: 'designation'})) document.getElementById(id).value = value"
    )
    press(browser, "x")
    wait_for(browser, "state.cuts.length === 3 && state.cuts.every(([source]) => source === 'broker-2')")
    press(browser, "l", ".", ".", ".")
    wait_for(browser, "state.loads[0]?.startsWith('t-0: 20 of 20 records sent, 20 acknowledged')")
    press(browser, "f", "k")
    wait_for(browser, "state.nodes.find(({ name }) => name === 'broker-2').state === 'down'")
    press(browser, "c", "e")
    wait_for(browser, "state.notice.startsWith('ELECTION_NOT_NEEDED')")
    steps = [next(iter(it.raw.items())) for it in served.world.done]
    assert ("crash", {"broker": 2, "lose": 3}) in steps
    assert ("flush", {"broker": 2}) in steps
    place = {"topic": "t", "partition": 0}
    assert ("reassign", {**place, "cancel": True, "expect_error": "NO_REASSIGNMENT_IN_PROGRESS"}) in steps
    assert steps[-1][1] == {
        **place,
        "type": "designation",
        "desired_leader": 2,
        "expect_error": "ELECTION_NOT_NEEDED",
    }
    choose_node(browser, "controller-1000")
    press(browser, "f")
    assert notice(browser) == "Refused: controller-1000 has no logs of partitions; choose a broker"
