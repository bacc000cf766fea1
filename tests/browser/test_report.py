"""The report of a study in a browser: charts, the reader's cluster, the table; narrow, printed, dark, scriptless."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from experiments.studies.report.render import LeftOut, PageExtras, render
from experiments.studies.report.words import number
from tests.browser.conftest import resize
from tests.synthetic_studies import cells_of, record_of, study_of, times_of

WITHIN_S = 60
STUDY = study_of(
    name="settings",
    base={"broker_mttf": "30d"},
    sweep={"generation": ["kip-497", "kip-966"], "min_insync_replicas": [1, 2, 3]},
)
LOSSES = [90, 80, 70, 60, 9, 0]
REJECTED = [1e-4, 1e-3, 1e-2, 1e-4, 1e-3, 1e-2]
CURVES = study_of(name="rates", sweep={"broker_mttf": "log(5d, 1y, 4)", "preset": ["none", "ford-2010"]})
TIMES = [{"failover": times_of((9_000, 0.9), (4e6, 1.0)), "handover": times_of((2, 0.4), (900, 1.0))} for _ in LOSSES]
BESIDE = PageExtras(TIMES, left_out=[LeftOut("trace/cell-0a1b-trials-0000000-0000003.parquet", "s", 0, 2, "damaged")])
ROW = "#table tbody tr:not([hidden])"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report with a recommendation."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(render(record_of(STUDY), cells_of(STUDY, LOSSES, unwritable=REJECTED), BESIDE), encoding="utf-8")
    return path.as_uri()


def drawn(browser: Chrome, address: str) -> None:
    """Opens a report and waits for its charts."""
    browser.get(address)
    until(browser, lambda: browser.execute_script("return document.documentElement.hasAttribute('data-drawn')"))


def until(browser: Chrome, condition: Callable[[], object]) -> None:
    WebDriverWait(browser, WITHIN_S).until(lambda _: condition())


def texts(browser: Chrome, selector: str) -> list[str]:
    return [element.text for element in browser.find_elements(By.CSS_SELECTOR, selector)]


def names(browser: Chrome) -> list[str]:
    """The settings that the table shows, in its order."""
    return [row.get_attribute("data-value") or "" for row in browser.find_elements(By.CSS_SELECTOR, f"{ROW} th")]


def sizes(browser: Chrome) -> list[dict[str, Any]]:
    """Of each chart: the number of marks it has, and its width and that of its place."""
    return browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(plot => ({"
        "marks: plot.querySelectorAll('.role-mark path, .role-mark line, .role-mark text').length,"
        "width: plot.querySelector('svg').getBoundingClientRect().width, place: plot.clientWidth}))"
    )


def assert_drawn_and_fitting(browser: Chrome, width: int) -> None:
    found = sizes(browser)
    assert len(found) >= 3
    assert all(plot["marks"] > 0 and 0 < plot["width"] <= plot["place"] + 1 for plot in found)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [1400, 390])
def test_charts_are_drawn_and_nothing_overflows(browser: Chrome, page: str, width: int) -> None:
    resize(browser, width, 900)
    drawn(browser, page)
    assert len(browser.find_elements(By.CSS_SELECTOR, ".vega-embed svg")) == len(sizes(browser))
    assert_drawn_and_fitting(browser, width)
    places = [
        browser.find_element(By.ID, name).rect["y"] for name in ("answer", "numbers", "losses", "kafka", "assumed")
    ]
    assert places == sorted(places), "the numbers come before what is assumed, and before the table of settings"


def test_rates_follow_the_number_of_partitions_in_text_and_charts(browser: Chrome, page: str) -> None:
    """Typed digit by digit: what a digit has scaled is not scaled again by the next one."""
    drawn(browser, page)
    field = browser.find_element(By.ID, "partitions")
    field.send_keys(Keys.END, "0000")
    until(browser, lambda: "a year in 10,000 partitions" in browser.find_element(By.CSS_SELECTOR, ".headline").text)
    rates = [loss / 100 * 10_000 for loss in LOSSES[:-1]]
    assert texts(browser, "#table td[data-low]:nth-child(2) > span:first-child")[:-1] == [
        number(rate) for rate in rates
    ]
    until(browser, lambda: {number(rate) for rate in rates} <= set(texts(browser, "#plot-loss_rate text")))
    assert texts(browser, "#cluster td[data-period]")[0] == f"{number(525_600 / rates[0])} minutes"
    assert texts(browser, "#cluster th [data-partitions]") == ["10,000 partitions"] * 2


def test_table_sorts_and_filters(browser: Chrome, page: str) -> None:
    drawn(browser, page)
    as_given = names(browser)
    assert as_given[0] == "kip-497 · min ISR 1"
    header = browser.find_element(By.CSS_SELECTOR, "#table th[data-key=loss_rate]")
    header.find_element(By.TAG_NAME, "button").click()
    assert header.get_attribute("aria-sort") == "ascending"
    assert names(browser) == as_given[::-1]
    header.find_element(By.TAG_NAME, "button").click()
    assert header.get_attribute("aria-sort") == "descending"
    assert names(browser) == as_given
    browser.find_element(By.ID, "filter").send_keys("isr 2")
    assert names(browser) == ["kip-497 · min ISR 2", "kip-966 · min ISR 2"]
    assert browser.find_element(By.ID, "shown").text == "2 of 6 settings"


def test_table_is_exported_as_it_is_shown(browser: Chrome, page: str, tmp_path: Path) -> None:
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(tmp_path)})
    drawn(browser, page)
    browser.find_element(By.ID, "filter").send_keys("kip-966")
    browser.find_element(By.ID, "export").click()
    path = tmp_path / "settings.csv"
    until(browser, lambda: path.exists() and path.stat().st_size > 0)
    rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [row["setting"] for row in rows] == ["kip-966 · min ISR 1", "kip-966 · min ISR 2", "kip-966 · min ISR 3"]
    assert [float(row["loss_rate"]) for row in rows] == [0.6, 0.09, 0.0]
    assert all(float(row["loss_rate_ci_low"]) <= float(row["loss_rate"]) for row in rows)
    assert float(rows[-1]["loss_rate_ci_high"]) == pytest.approx(0.02996, abs=1e-5)


def test_charts_explain_a_point(browser: Chrome, page: str) -> None:
    drawn(browser, page)
    mark = browser.find_element(By.CSS_SELECTOR, "#plot-loss_rate .mark-symbol path")
    ActionChains(browser).move_to_element(mark).perform()
    until(browser, lambda: texts(browser, "#vg-tooltip-element.visible"))
    assert "kip-966 · min ISR 3" in "".join(texts(browser, "#vg-tooltip-element"))


def test_paper_has_the_charts_and_no_controls(browser: Chrome, page: str) -> None:
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    resize(browser, 794, 1123)
    drawn(browser, page)
    assert_drawn_and_fitting(browser, 794)
    for selector in ("nav", "#partitions", "#filter", "#export"):
        assert not browser.find_element(By.CSS_SELECTOR, selector).is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_dark_page_has_light_text_in_its_charts(browser: Chrome, page: str) -> None:
    colour = (
        "return getComputedStyle(document.querySelector(arguments[0])).getPropertyValue(arguments[1])"
        ".match(/[0-9.]+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0)"
    )
    for scheme, is_light in (("light", False), ("dark", True)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        drawn(browser, page)
        assert (browser.execute_script(colour, "#plot-loss_rate text", "fill") > 384) == is_light
        assert (browser.execute_script(colour, "body", "background-color") < 384) == is_light


def test_page_without_scripts_shows_its_drawings_and_tables(browser: Chrome, page: str) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(page)
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert not browser.find_elements(By.CSS_SELECTOR, ".vega-embed")
    assert_drawn_and_fitting(browser, 1400)
    assert len(names(browser)) == 6
    assert (
        "kip-966 · min ISR 3 loses acknowledged records least often"
        in browser.find_element(By.CSS_SELECTOR, ".headline").text
    )
    assert "4,200" not in browser.find_element(By.ID, "cluster").text
    assert number(LOSSES[0] / 100 * 10_000) in browser.find_element(By.ID, "cluster").text
    assert not browser.find_element(By.ID, "partitions").is_displayed()


def test_curves_and_maps_of_a_swept_failure_rate_are_drawn(browser: Chrome, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(render(record_of(CURVES), cells_of(CURVES, [90, 80, 40, 50, 20, 30, 0, 9])), encoding="utf-8")
    drawn(browser, path.as_uri())
    found = json.loads(browser.execute_script("return document.getElementById('charts').textContent"))
    assert {"curve-broker_mttf", "map-0"} <= {chart["name"] for chart in found}
    assert_drawn_and_fitting(browser, 1400)
