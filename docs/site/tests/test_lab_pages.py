"""The lab's pages in a headless Chromium.

The tests use every control, the keyboard and both widths, and allow no error and no other host.
"""

import functools
import http.server
import json
import re
import shutil
import sys
import threading
import time
from pathlib import Path

import pytest

SITE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SITE))

import make  # noqa: E402

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed (the extra `test` has it)")
if not (CHROMIUM and DRIVER):
    pytest.skip("Chromium is not installed (Debian: chromium, chromium-driver)", allow_module_level=True)

from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

pytestmark = pytest.mark.flaky(reruns=2, only_rerun=["invalid session id", "session not created", "tab crashed"])
"""On a busy machine Chromium sometimes ends or does not start, which says nothing about the pages."""

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
)  # fmt: skip
SHELL = """<!doctype html><html lang="en"><head><meta charset="utf-8"><link rel="icon" href="data:,">
<meta name="viewport" content="width=device-width"><title>lab</title></head>
<body><div style="height: 40rem"></div>{}</body></html>"""
"""The HTML around the part of a page that is not Markdown, so that the test needs no Sphinx; with room for the text."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words):
        pass


def raw(name: str) -> str:
    text = (SITE / f"lab/{name}.md").read_text(encoding="utf-8")
    return text[text.index("<div") : text.rindex("</script>") + len("</script>")]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    make.add_lab(folder / "_static/lab")
    (folder / "lab").mkdir()
    for page in (SITE / "lab").glob("*.md"):
        if "<script" in page.read_text(encoding="utf-8"):
            (folder / f"lab/{page.stem}.html").write_text(SHELL.format(raw(page.stem)), encoding="utf-8")
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/lab"
        server.shutdown()


@pytest.fixture(scope="module")
def browsers():
    """Return the list of browsers, of which the last one is used."""
    drivers = []
    yield drivers
    for driver in drivers:
        driver.quit()


@pytest.fixture
def browser(browsers):
    """Return a Chromium that answers: a new one for a test that runs again because Chromium ended."""
    try:
        assert browsers and browsers[-1].title is not None
    except (AssertionError, WebDriverException):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in FLAGS:
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
        driver.implicitly_wait(2)
        driver.set_script_timeout(90)
        browsers.append(driver)
    return browsers[-1]


@pytest.fixture
def show(browser, address):
    """Return a function that opens a page. The end checks for errors and requests to other hosts."""

    def opened(name, width=1366):
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        browser.get(f"{address}/{name}")
        return browser

    yield opened
    logged = [entry["message"] for entry in browser.get_log("browser")]
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert logged == []
    assert asked and all(url.startswith((address.removesuffix("lab"), "data:")) for url in asked)


def find(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def wait_until(found, wanted):
    """Fail unless the result of `found` satisfies `wanted` within 30 seconds. CI is slow with parallel tests."""
    end = time.monotonic() + 30
    while not wanted(value := found()):
        assert time.monotonic() < end, value
        time.sleep(0.05)


def until_address(browser, part):
    """Wait until the address of the page has a part. The address follows the state after a pause."""
    wait_until(lambda: browser.current_url, lambda address: part in address)


def says(browser, router="base"):
    return find(browser, f"#lab-card-{router} .lab-say").text


TOP = "return document.querySelector('.lab-page').getBoundingClientRect().top"


def test_a_state_in_the_address_is_shown_at_once_and_the_introduction_otherwise(show):
    assert show("routers.html").execute_script(TOP) > 500
    wait_until(lambda: show("routers.html?lead=hash").execute_script(TOP), lambda top: top < 200)


def test_a_newcomer_moves_two_prices_and_sees_the_proof(show):
    page = show("routers.html")
    assert "raise its price" in says(page)
    first, second = page.find_elements(By.CSS_SELECTOR, ".lab-prices input")[:2]
    first.send_keys(Keys.ARROW_RIGHT * 12)  # to 3, in quarters
    assert "expert 1" in says(page)
    second.send_keys(Keys.ARROW_RIGHT * 8)
    assert says(page).startswith("Balanced, and proved")
    until_address(page, "?base.prices=3,2,0")
    find(page, "#lab-card-base .lab-transport button:nth-of-type(2)").click()  # Step: the auction takes over
    assert says(page).startswith("Token 0 bids")


EVERY = """
const changed = [];
const act = (node, event) => { node.dispatchEvent(new Event(event, {bubbles: true})); changed.push(node); };
for (const node of document.querySelectorAll('.lab button')) { if (!node.hidden) { node.click(); changed.push(node); } }
for (const node of document.querySelectorAll('.lab select')) for (const option of node.options) {
  node.value = option.value; act(node, 'change');
}
for (const node of document.querySelectorAll('.lab input[type=range]')) for (const end of [node.max, node.min]) {
  node.value = end; act(node, 'input');
}
const fields = [...document.querySelectorAll('.lab input[type=number]')].slice(0, 3);
for (const node of fields) for (const value of ['', '3.5', '-1', '1e9']) {
  node.value = value; act(node, 'input');
}
document.querySelectorAll('.lab button').forEach((node) => node.textContent === 'Pause' && node.click());
return [changed.length, document.querySelector('.lab').textContent];
"""


@pytest.mark.parametrize("name", sorted(path.stem for path in (SITE / "lab").glob("*.md") if path.stem != "index"))
def test_every_control_can_be_used_and_leaves_numbers(show, name):
    page = show(f"{name}.html")
    wait_until(lambda: page.find_elements(By.CSS_SELECTOR, ".lab button, .lab input"), bool)
    count, text = page.execute_script(EVERY)
    assert count > 10
    assert not re.search(r"NaN|undefined|\[object", text)


@pytest.mark.parametrize("name", sorted(path.stem for path in (SITE / "lab").glob("*.md") if path.stem != "index"))
@pytest.mark.parametrize("width", [390, pytest.param(1366, marks=pytest.mark.slow)])
def test_the_tabulator_key_reaches_every_control_and_nothing_is_wider_than_the_page(show, name, width):
    page = show(f"{name}.html", width)
    wait_until(lambda: page.execute_script("return document.documentElement.scrollWidth"), lambda wide: wide <= width)
    ask = """return [...document.querySelectorAll('button, select, input, a[href]')]
      .filter((node) => node.checkVisibility() && node.tabIndex >= 0).length"""
    count = page.execute_script(ask)
    page.execute_script("""window.met = new Set(); window.unseen = [];
      addEventListener('focusin', ({target}) => {
        met.add(target);
        if (getComputedStyle(target).outlineStyle === 'none') unseen.push(target.outerHTML);
      })""")
    find(page, "body").send_keys(Keys.TAB * (count + 1))
    assert page.execute_script("return met.size") == count
    assert page.execute_script("return unseen") == []


def test_a_router_plays_to_its_end_and_the_address_says_where_it_is(show):
    page = show("routers.html?lead=sinkhorn&sinkhorn.temperature=0.5&sinkhorn.step=1")
    assert says(page, "sinkhorn").startswith("Column step")
    assert page.execute_script("return document.querySelector('.lab-lead article').id") == "lab-card-sinkhorn"
    shown = page.execute_script("return document.querySelector('.lab').innerText")
    page.refresh()
    assert page.execute_script("return document.querySelector('.lab').innerText") == shown
    page.execute_script("""const real = setInterval; window.setInterval = (act) => real(act, 5);
      [...document.querySelectorAll('.lab-all button')].find((node) => node.textContent === 'Play all').click()""")
    ended = "return [...document.querySelectorAll('.lab-transport button')].every((n) => n.textContent !== 'Pause')"
    wait_until(lambda: page.execute_script(ended), bool)
    assert "plan is balanced" in says(page, "sinkhorn")


def test_a_card_that_is_brought_up_keeps_the_focus_near(show):
    page = show("routers.html")
    find(page, "#lab-card-quantile header button").send_keys(Keys.ENTER)
    assert page.execute_script("return document.querySelector('.lab-lead article').id") == "lab-card-quantile"
    assert page.execute_script("return document.activeElement.dataset.router") == "quantile"
    until_address(page, "?lead=quantile")


def test_a_number_is_dragged_sideways(show):
    page = show("routers.html")
    field = find(page, ".lab-edit input")
    drag = webdriver.ActionChains(page, duration=10).click_and_hold(field).move_by_offset(-80, 0).release()
    drag.perform()
    assert field.get_attribute("value") == "3"
    until_address(page, "table=3,")


def test_a_wrong_address_is_mended_with_a_word(show):
    page = show("routers.html?table=1,2;3&lead=nobody")
    assert "2" in find(page, ".lab-warning").text and says(page)


def test_without_scripts_there_is_a_picture_and_text(show, browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page = show("routers.html")
        assert "need JavaScript" in find(page, "#lab-routers").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_law_is_moved_and_fitted(show):
    page = show("law.html")
    say = find(page, ".lab-say")
    assert say.text.startswith("The best law for these 58 runs")
    gain = page.find_elements(By.CSS_SELECTOR, ".lab-sliders input")[2]
    before = find(page, ".lab-line").get_attribute("d")
    gain.send_keys(Keys.ARROW_RIGHT * 10)
    assert "times those of the best fit" in say.text
    assert find(page, ".lab-line").get_attribute("d") != before
    until_address(page, "table=S-Base&level=")
    shown = page.execute_script("return document.querySelector('.lab').innerText")
    page.refresh()
    assert page.execute_script("return document.querySelector('.lab').innerText") == shown
    find(page, ".lab-bar button").click()
    assert find(page, ".lab-say").text.startswith("The best law")


def test_a_floor_is_switched_on_and_moved(show):
    page = show("law.html?table=Hash")
    curve, facts = find(page, ".lab-line").get_attribute("d"), find(page, ".lab-facts").text
    floor = find(page, ".lab-sliders input")
    assert not floor.is_displayed()
    find(page, ".lab-bar button[aria-pressed]").click()
    assert floor.is_displayed() and floor.get_attribute("value") == "1.44"
    assert find(page, ".lab-line").get_attribute("d") != curve and "0.00139" in find(page, ".lab-facts").text != facts
    floor.send_keys(Keys.ARROW_RIGHT * 20)
    assert "times those of the best fit" in find(page, ".lab-say").text
    until_address(page, "law=floor&floor=1.64")
    find(page, ".lab-bar button[aria-pressed]").click()
    assert not floor.is_displayed() and find(page, ".lab-line").get_attribute("d") == curve


def test_a_table_of_ones_own_is_read_in_the_browser(show, tmp_path):
    good, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    rows = [f"{e},{n:.0f},{3 - i / 3 - j / 9}" for i, n in enumerate((1e7, 1e8)) for j, e in enumerate((1, 4, 16, 64))]
    good.write_text("num_experts,dense_parameter_count,loss_validation\n" + "\n".join(rows))
    bad.write_text("<b>a</b>,b\n1,2\n")
    page = show("law.html")
    field = find(page, ".lab-drop input")
    field.send_keys(str(bad))
    wait_until(lambda: find(page, ".lab-say").text, lambda text: "no column for N and E and loss" in text)
    field.send_keys(str(good))
    wait_until(lambda: find(page, ".lab-say").text, lambda text: "8 runs" in text)
    assert "stays in this browser" in find(page, ".lab-note-line").text
    assert len(page.find_elements(By.CSS_SELECTOR, ".lab-dots")) == 4  # two sizes in two charts


def test_a_budget_is_moved_and_the_fitted_laws_arrive(show):
    page = show("budget.html?flops=1e21&memory=80")

    def choices():
        script = "return [...document.querySelectorAll('.lab-rest .lab-say')].map((node) => node.textContent)"
        return page.execute_script(script)

    wait_until(choices, lambda texts: len(texts) == 8)  # of five printed laws, and then of three fitted ones
    joint = choices()[3]
    assert joint.startswith("E = 32, N = 2B")
    memory = page.find_elements(By.CSS_SELECTOR, ".lab-sliders input")[1]
    memory.send_keys(Keys.HOME)  # a gigabyte
    until_address(page, "memory=1&")
    smaller = choices()[3]
    assert smaller != joint and smaller.startswith("E = ")
    page.refresh()
    assert choices()[3] == smaller
