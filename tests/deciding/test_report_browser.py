"""The page in a real browser: light and dark as the reader's system says, and every part of it by keyboard alone."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from netgain.deciding.experiment.arms.settings_told import ArmSettings
from netgain.deciding.report.write import write_report
from tests.deciding.test_report import adopted
from tests.deciding.test_report_access import luminance
from tests.waiting import PATIENCE_S

__all__ = ["adopted"]  # a fixture

FOCUSED = """(() => {
  const here = document.activeElement, style = getComputedStyle(here);
  return {tag: here.tagName, name: here.getAttribute("aria-label"), outline: style.outlineStyle,
          width: parseFloat(style.outlineWidth), place: [...document.querySelectorAll("*")].indexOf(here)};
})()"""
REACHABLE = """[...document.querySelectorAll(".scroll, summary")].filter(one => one.checkVisibility())
  .map(one => [...document.querySelectorAll("*")].indexOf(one))"""


class Page:
    """One page, spoken to by the DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._asked = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._asked += 1
        await self._socket.send_json({"id": self._asked, "method": method, "params": parameters})
        while True:
            answer = await self._socket.receive_json(timeout=60)
            if answer.get("id") == self._asked:
                assert "error" not in answer, (method, answer)
                return answer["result"]

    async def value(self, expression: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def press(self, key: str, code: int, text: str = "") -> None:
        for kind in ("keyDown" if text else "rawKeyDown", "keyUp"):
            said = {"text": text} if text and kind == "keyDown" else {}
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **said)

    async def show(self, path: Path) -> None:
        await self.call("Page.navigate", url=path.as_uri())
        for _ in range(300):
            if await self.value("document.readyState === 'complete' && location.protocol === 'file:'"):
                return
            await asyncio.sleep(0.1)
        raise AssertionError("the page was not loaded within 30 s")


@pytest.fixture
async def page(requires_browser, tmp_path) -> AsyncIterator[Page]:
    profile = tmp_path / "profile"
    browser = await asyncio.create_subprocess_exec(
        *(requires_browser, "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"),
        *(f"--user-data-dir={profile}", "--window-size=900,900", "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                targets = await answer.json(content_type=None)
            (url, *_) = [one["webSocketDebuggerUrl"] for one in targets if one["type"] == "page"]
            async with session.ws_connect(url, max_msg_size=0) as socket:
                yield Page(socket)
    finally:
        with suppress(ProcessLookupError):
            browser.terminate()
        try:
            await asyncio.wait_for(browser.wait(), PATIENCE_S)
        except TimeoutError:
            browser.kill()
            await browser.wait()


async def _port(file: Path) -> int:
    """The browser writes it down once it listens."""
    for _ in range(600):
        lines = file.read_text().splitlines() if file.exists() else []
        if len(lines) == 2:
            return int(lines[0])
        await asyncio.sleep(0.1)
    raise AssertionError("the browser did not listen within 60 s")


def as_hex(colour: str) -> str:
    """`rgb(1, 2, 3)`, as computed styles say it, as #rrggbb."""
    return "#" + "".join(f"{int(part):02x}" for part in re.findall(r"\d+", colour)[:3])


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_page_and_pictures_follow_the_scheme_of_the_system(adopted, tmp_path, page, scheme):
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await page.show(write_report(adopted, tmp_path / "report"))
    paper = luminance(as_hex(await page.value("getComputedStyle(document.body).backgroundColor")))
    assert paper > 0.9 if scheme == "light" else paper < 0.1
    for expression, least in (
        ("getComputedStyle(document.body).color", 4.5),
        ("getComputedStyle(document.querySelector('svg text')).fill", 4.5),
        ("getComputedStyle(document.querySelector('.bar-baseline')).fill", 3.0),
        ("getComputedStyle(document.querySelector('.bar-candidate')).fill", 3.0),
        ("getComputedStyle(document.querySelector('.curve.line-baseline')).stroke", 3.0),
        ("getComputedStyle(document.querySelector('.curve.line-candidate')).stroke", 3.0),
    ):
        dark, light = sorted((paper, luminance(as_hex(await page.value(expression)))))
        assert (light + 0.05) / (dark + 0.05) >= least, expression


SMALLEST = """Math.min(...[...document.querySelectorAll("svg text")].filter(one => one.checkVisibility())
  .map(one => parseFloat(getComputedStyle(one).fontSize) * one.ownerSVGElement.getScreenCTM().a))"""


async def test_words_in_pictures_can_be_read_on_a_phone_without_the_page_growing_wider(adopted, tmp_path, page):
    await page.call("Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=2, mobile=True)
    await page.show(write_report(adopted, tmp_path / "report"))
    assert await page.value(SMALLEST) >= 9.0
    assert await page.value("document.documentElement.scrollWidth") <= 390


async def test_all_that_scrolls_or_folds_is_reached_by_tab_shows_its_focus_and_opens_by_key(adopted, tmp_path, page):
    await page.show(write_report(adopted, tmp_path / "report"))
    await page.call("Emulation.setFocusEmulationEnabled", enabled=True)
    wanted = await page.value(REACHABLE)
    reached: list[int] = []
    folded = 0
    for _ in range(len(wanted) + 5):
        await page.press("Tab", 9)
        here = await page.value(FOCUSED)
        if here["tag"] == "BODY" or here["place"] in reached:
            break
        reached.append(here["place"])
        assert here["outline"] not in ("none", "hidden"), here
        assert here["width"] >= 2.0, here
        assert here["name"] or here["tag"] == "SUMMARY", here
        folded += here["tag"] == "SUMMARY"
    assert len(wanted) > 10
    assert [place for place in reached if place in wanted] == wanted, "in the order of the page"
    assert folded > 2
    await page.value("document.querySelector('summary').focus()")
    await page.press("Enter", 13, "\r")
    assert await page.value("document.querySelector('details').open") is True
    await page.press("Tab", 9)
    assert await page.value("document.querySelector('details').contains(document.activeElement)") is True


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_setting_is_closed_until_it_is_asked_for_and_what_differs_can_be_read(
    adopted, tmp_path, page, scheme
):
    told = [
        ArmSettings(name=name, engine="netgain", settings={"a": name, "b": "1"}) for name in ("baseline", "candidate")
    ]
    await page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    await page.show(write_report(msgspec.structs.replace(adopted, settings=tuple(told)), tmp_path / "report"))
    row = "document.querySelector('details.long tr.differs')"
    assert not await page.value(f"{row}.checkVisibility()")
    await page.value("document.querySelector('details.long summary').focus()")
    await page.press("Enter", 13, "\r")
    assert await page.value(f"{row}.checkVisibility()")
    assert await page.value(f"{row}.textContent.includes('differs')")
    paper = luminance(as_hex(await page.value(f"getComputedStyle({row}).backgroundColor")))
    for cell in ("firstElementChild", "lastElementChild"):
        ink = luminance(as_hex(await page.value(f"getComputedStyle({row}.{cell}).color")))
        dark, light = sorted((paper, ink))
        assert (light + 0.05) / (dark + 0.05) >= 4.5
