"""The run explorer in a browser: what it draws, what keys, pointer and address do, how long 50,000 events take."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from selenium.webdriver import Chrome, Keys
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from experiments.check.engine import CheckedEngine
from experiments.explorer.difference import differences
from experiments.explorer.page import write_page
from experiments.explorer.run import Run, RunEvent, StoryRow
from experiments.hunt.fuzz.run import explore_plan
from experiments.hunt.fuzz.swarm import draw
from experiments.hunt.mutants.registry import mutated
from experiments.scenarios.explored import run_explored, with_cluster
from experiments.scenarios.loader import load_scenario
from experiments.scenarios.runner import Runner
from experiments.support.shipped import SCENARIOS
from tests.browser.conftest import resize

WITHIN_S = 60
NODES = (3000, 0, 1, 2, 3, 1000)


def scenario_run(name: str, generation: str) -> Run:
    """A shipped scenario in a generation."""
    scenario = with_cluster(load_scenario(SCENARIOS / f"{name}.yaml"), generation=generation)
    runner = Runner(scenario, CheckedEngine(scenario.cluster.spec(0)), keeps_going=True)
    return run_explored(runner, runner.run, f"{name} {generation}")[1]


def violated_run() -> Run:
    """A run of the fuzz that a mutant lets violate an invariant."""
    with mutated("maximal-isr-not-used"):
        return explore_plan(draw(1), "with a mutant")[1]


def drawn_run(size: int) -> Run:
    """A run of `size` events: messages between six nodes, a millisecond or a pause apart, and high watermarks."""
    random, now_ms, on_way = Random(size), 0, list[tuple[int, int, int]]()
    events: list[RunEvent] = []
    while len(events) < size:
        now_ms += random.choice((0, 0, 1, 1, 2, 900))
        if random.random() < 0.1:
            mark = {"high_watermark": len(events), "leader_epoch": 0}
            events.append(RunEvent(now_ms, 0, "trace", "high_watermark", ("t-0",), mark))
            continue
        if len(on_way) > random.randrange(8):
            sent, source, target = on_way.pop(0)
            about = events[sent].partitions
            events.append(
                RunEvent(now_ms, target, "receive", "FetchRequest", about, {"from": source}, sent, "receives")
            )
            continue
        source, target = random.sample(NODES, 2)
        on_way.append((len(events), source, target))
        fields = {"to": target, "fetch_offset": len(events), "replica_epoch": now_ms, "session": 1}
        about = (random.choice(("t-0", "t-1")),)
        events.append(RunEvent(now_ms, source, "send", "FetchRequest", about, fields, text="sends"))
    story = [StoryRow(index, events[index].time_ms, 0, "a line of the story") for index in range(0, size, 10)]
    return Run(f"{size} events", [("seed", str(size))], NODES, events, story=story)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[Run]]]:
    """The pages of this module with their runs."""
    folder = tmp_path_factory.mktemp("pages")
    generations = [scenario_run("last-replica-standing", name) for name in ("kip-966", "kip-497")]
    runs = {
        "scenario": generations[:1],
        "generations": generations,
        "violation": [violated_run()],
        "small": [drawn_run(5_000)],
        "large": [drawn_run(50_000)],
    }
    for name, found in runs.items():
        write_page(folder / f"{name}.html", *found, found=differences(*found) if len(found) > 1 else ())
    return {name: (folder / f"{name}.html", found) for name, found in runs.items()}


class Explorer:
    """A page in the browser."""

    def __init__(self, browser: Chrome, path: Path, address: str = "") -> None:
        self.browser = browser
        browser.get("about:blank")
        browser.get(f"{path.as_uri()}{address}")
        WebDriverWait(browser, WITHIN_S).until(lambda _: self.js("return Boolean(window.explorer)"))

    def js(self, script: str, *arguments: object) -> Any:
        return self.browser.execute_script(script, *arguments)

    def press(self, *keys: str) -> None:
        ActionChains(self.browser).send_keys(*keys).perform()

    @property
    def selected(self) -> int | None:
        found = self.js("return explorer.selected ? explorer.selected.index : null")
        return None if found is None else int(found)

    @property
    def span(self) -> float:
        return float(self.js("return explorer.view.to - explorer.view.from"))

    def text(self, css: str) -> str:
        return self.browser.find_element(By.CSS_SELECTOR, css).text


def causal_past(run: Run, index: int) -> set[int]:
    """The causal past by its definition: everything from which a path of steps leads to the event."""
    before: dict[int, list[int]] = {}
    last: dict[int, int] = {}
    for place, event in enumerate(run.events):
        before[place] = [last[event.node]] if event.node in last else []
        before[place] += [event.cause] if event.cause >= 0 else []
        last[event.node] = place
    found, waiting = {index}, [index]
    while waiting:
        new = [place for place in before[waiting.pop()] if place not in found]
        found.update(new)
        waiting += new
    return found


@pytest.mark.parametrize("name", ["scenario", "violation", "small"])
def test_the_causal_past_is_what_happened_before(browser: Chrome, pages: Any, name: str) -> None:
    path, [run] = pages[name]
    explorer = Explorer(browser, path)
    for index in (0, len(run.events) // 3, len(run.events) - 1):
        found = explorer.js(
            "return [...causalPast(explorer.runs[0], arguments[0])].flatMap((each, i) => (each ? [i] : []))", index
        )
        assert set(found) == causal_past(run, index)


def test_a_violation_is_marked_with_its_causal_past(browser: Chrome, pages: Any) -> None:
    path, [run] = pages["violation"]
    explorer = Explorer(browser, path)
    explorer.press("v")
    violation = next(index for index, event in enumerate(run.events) if event.role == "violation")
    assert explorer.selected == violation
    assert len(causal_past(run, violation)) == explorer.js("return explorer.past.reduce((a, b) => a + b, 0)")
    assert run.events[violation].kind in explorer.text("#details h2")
    assert run.events[violation].text in explorer.text("#details")


def test_keys_step_through_the_events_and_zoom(browser: Chrome, pages: Any) -> None:
    path, [run] = pages["scenario"]
    explorer = Explorer(browser, path)
    explorer.press(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert explorer.selected == 2
    explorer.press(Keys.ARROW_LEFT)
    assert explorer.selected == 1
    ActionChains(browser).key_down(Keys.SHIFT).send_keys(Keys.ARROW_RIGHT).key_up(Keys.SHIFT).perform()
    node = run.events[1].node
    assert explorer.selected == next(
        index for index, event in enumerate(run.events) if index > 1 and event.node == node
    )
    whole = explorer.span
    explorer.press("+")
    assert explorer.span == pytest.approx(whole / 2)
    explorer.press("0")
    assert explorer.span == pytest.approx(whole)
    explorer.press(Keys.ESCAPE)
    assert explorer.selected is None


def test_wheel_drag_and_pinch_move_the_view(browser: Chrome, pages: Any) -> None:
    explorer = Explorer(browser, pages["scenario"][0])
    canvas = browser.find_element(By.CSS_SELECTOR, "#stage canvas")
    whole = explorer.span
    ActionChains(browser).move_to_element(canvas).perform()
    box = explorer.js("const b = arguments[0].getBoundingClientRect(); return [b.left, b.top]", canvas)
    x, y = box[0] + 500, box[1] + 150
    wheel = {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": -600}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", wheel)
    WebDriverWait(browser, WITHIN_S).until(lambda _: explorer.span < whole / 2)
    begin = explorer.js("return explorer.view.from")
    ActionChains(browser).click_and_hold(canvas).move_by_offset(-200, 0).release().perform()
    assert explorer.js("return explorer.view.from") > begin
    zoomed = explorer.span
    for kind, apart in (("touchStart", 40), ("touchMove", 80), ("touchMove", 160), ("touchEnd", 0)):
        points = [{"x": x + side * apart, "y": y, "id": side + 2} for side in (-1, 1)] if apart else []
        browser.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    WebDriverWait(browser, WITHIN_S).until(lambda _: explorer.span < zoomed / 2)


def test_a_click_on_an_arrow_shows_the_fields_of_the_message(browser: Chrome, pages: Any) -> None:
    path, [run] = pages["scenario"]
    sent = next(
        index
        for index, event in enumerate(run.events)
        if (event.role, event.kind) == ("send", "ProduceRequest") and event.node == 3000
    )
    explorer = Explorer(browser, path, f"#a{sent}")
    assert explorer.selected == sent
    assert "sends ProduceRequest to broker-0" in explorer.text("#details h2")
    x, y = explorer.js(
        "const pane = explorer.panes[0], run = pane.run, i = arguments[0], box = pane.canvas.getBoundingClientRect();"
        "const along = (from, to) => from + 0.4 * (to - from);"
        "return [box.left + along(pane.x(i), pane.x(run.effect[i])),"
        " box.top + along(pane.y(run.node[i]), pane.y(run.node[run.effect[i]]))]",
        sent,
    )
    explorer.press(Keys.ESCAPE)
    for kind in ("mousePressed", "mouseReleased"):
        event = {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1, "buttons": 1}
        browser.execute_cdp_cmd("Input.dispatchMouseEvent", event)
    WebDriverWait(browser, WITHIN_S).until(lambda _: explorer.selected is not None)
    assert run.events[explorer.selected or 0].role == "send"
    fields = explorer.text("#details .fields")
    assert "arrives_ms" in fields


def test_filters_leave_events_out(browser: Chrome, pages: Any) -> None:
    path, [run] = pages["scenario"]
    explorer = Explorer(browser, path)
    shown = "return explorer.shown[0].reduce((a, b) => a + b, 0)"
    assert explorer.js(shown) == len(run.events)
    browser.find_element(By.CSS_SELECTOR, ".filter summary").click()
    browser.find_element(By.XPATH, "//fieldset[legend='Nodes']/label[.='broker-2']/input").click()
    rest = [event for event in run.events if event.node != 2]
    assert explorer.js(shown) == len(rest)
    browser.find_element(By.XPATH, "//fieldset[.//legend[.='Metadata quorum']]//legend//input").click()
    quorum = explorer.js("return [...explorer.kindsByGroup.get('Metadata quorum')].map((name) => name.split(' ')[1])")
    assert "QuorumFetchRequest" in quorum
    assert explorer.js(shown) == len([event for event in rest if event.kind not in quorum])


def test_only_the_events_of_a_partition_are_left(browser: Chrome, pages: Any) -> None:
    path, [run] = pages["small"]
    explorer = Explorer(browser, path)
    browser.find_element(By.ID, "only").click()
    counts = {name: sum(name in event.partitions for event in run.events) for name in ("t-0", "t-1")}
    assert explorer.js("return explorer.shown[0].reduce((a, b) => a + b, 0)") == counts["t-0"]
    browser.find_element(By.CSS_SELECTOR, "#partition option[value='t-1']").click()
    assert explorer.js("return explorer.shown[0].reduce((a, b) => a + b, 0)") == counts["t-1"]


def test_the_story_and_the_diagram_select_the_same_event(browser: Chrome, pages: Any) -> None:
    explorer = Explorer(browser, pages["scenario"][0])
    row = browser.find_elements(By.CSS_SELECTOR, "tr[data-event]")[12]
    row.find_element(By.TAG_NAME, "a").click()
    assert explorer.selected == int(row.get_attribute("data-event") or -1)
    assert browser.current_url.endswith(f"#a{explorer.selected}")
    marked = browser.find_element(By.CSS_SELECTOR, "tr[aria-current]")
    assert marked.get_attribute("data-event") == row.get_attribute("data-event")


def test_two_runs_are_drawn_with_their_first_difference(browser: Chrome, pages: Any) -> None:
    path, runs = pages["generations"]
    explorer = Explorer(browser, path)
    assert len(browser.find_elements(By.CSS_SELECTOR, "#stage canvas")) == 2
    found = {each.what: each for each in differences(*runs)}
    explorer.press("d", "d")
    assert explorer.selected == found["partition state"].first
    assert "ELR {1}" in explorer.text(".differences")


@pytest.mark.parametrize("name", ["generations", "large"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_page_without_overflow(browser: Chrome, pages: Any, name: str, scheme: str) -> None:
    resize(browser, 390, 844)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    explorer = Explorer(browser, pages[name][0])
    assert explorer.js("return document.documentElement.scrollWidth") <= 390
    colours = explorer.js(
        "const { canvas } = explorer.panes[0];"
        "const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);"
        "return new Set(new Uint32Array(data.buffer)).size"
    )
    assert colours > 50
    light = explorer.js("return getComputedStyle(document.body).backgroundColor") == "rgb(251, 250, 247)"
    assert light == (scheme == "light")


def test_without_javascript_the_story_is_there(browser: Chrome, pages: Any) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    browser.get(pages["violation"][0].as_uri())
    assert not browser.find_element(By.ID, "explorer").is_displayed()
    assert "needs JavaScript" in (browser.find_element(By.TAG_NAME, "noscript").get_attribute("textContent") or "")
    rows = browser.find_elements(By.CSS_SELECTOR, ".story tr[data-event]")
    assert rows[0].is_displayed()
    assert any("violated: " in (row.get_attribute("textContent") or "") for row in rows[-5:])


def test_paper_has_the_diagram_and_the_whole_story(browser: Chrome, pages: Any) -> None:
    explorer = Explorer(browser, pages["generations"][0])
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    resize(browser, 700, 900)
    canvases = browser.find_elements(By.CSS_SELECTOR, "#stage canvas")
    assert len(canvases) == 2
    assert all(canvas.is_displayed() and 300 < canvas.size["width"] <= 700 for canvas in canvases)
    assert not browser.find_element(By.CSS_SELECTOR, ".toolbar").is_displayed()
    box = "const box = document.querySelector('.story-box'); return box.scrollHeight - box.clientHeight"
    assert explorer.js(box) == 0


def frame_times(explorer: Explorer) -> list[float]:
    """The times of 40 frames, ms: of the whole run and of parts of it, while it is panned and zoomed."""
    script = """
        const [from, to] = [explorer.view.from, explorer.view.to];
        const times = [];
        for (let k = 0; k < 40; k++) {
            explorer.view = { from: from + ((to - from) * k) / 90, to: to - ((to - from) * k) / 200 };
            const began = performance.now();
            explorer.drawNow();
            explorer.panes[0].context.getImageData(0, 0, 1, 1);
            times.push(performance.now() - began);
        }
        return times;
    """
    return sorted(explorer.js(script))


def test_ten_times_the_events_are_not_ten_times_the_frame(
    browser: Chrome, pages: Any, record_property: Callable[[str, object], None]
) -> None:
    medians, drawn = {}, {}
    for name in ("small", "large"):
        explorer = Explorer(browser, pages[name][0])
        medians[name] = frame_times(explorer)[20]
        drawn[name] = explorer.js("explorer.fit(); explorer.drawNow(); return explorer.panes[0].drawn")
        opened = explorer.js("return performance.getEntriesByName('explorer-ready')[0].startTime")
        record_property(f"{name}: ms to open", opened)
        record_property(f"{name}: ms of the median frame", medians[name])
    assert medians["large"] < 5 * medians["small"]
    assert drawn["small"] < drawn["large"] < 8_000, "of 25,000 arrows"
