"""The pages by keyboard and screen reader: what scrolls can be reached and has a name, what is focused shows, pictures speak."""

import re
from html.parser import HTMLParser
from importlib import resources

import pytest

from netgain.deciding.report.html import render_html
from tests.deciding.test_report import adopted, swept_of

__all__ = ["adopted"]  # a fixture

STYLE = (resources.files("netgain.deciding.report") / "style.css").read_text(encoding="utf-8")
TEMPLATES = sorted(
    path.name for path in resources.files("netgain.deciding.report").iterdir() if path.name.endswith(".html.j2")
)


class Elements(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_every_scrolling_area_takes_the_focus_and_has_a_name(adopted):
    areas = [of for _, of in Elements(render_html(swept_of(adopted))).found if of.get("class") == "scroll"]
    assert len(areas) > 10
    assert all((of["tabindex"], of["role"]) == ("0", "region") and of["aria-label"] for of in areas)
    assert set(re.findall(r"([^{}]*)\{[^{}]*overflow-x:\s*auto", STYLE)) == {"\n.scroll "}, "nothing else scrolls"


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_has_a_scrolling_area_beyond_the_keyboard(name):
    text = (resources.files("netgain.deciding.report") / name).read_text(encoding="utf-8")
    for tag in re.findall(r'<\w+ class="scroll"[^>]*>', text):
        assert 'tabindex="0"' in tag
        assert 'role="region"' in tag
        assert re.search(r'aria-label="[^"]+"', tag)
    for head in re.findall(r"<thead>.*?</thead>", text, re.DOTALL):
        assert re.findall(r"<th[ >]", head) == ["<th "] * head.count('<th scope="col"'), "columns say what they head"


def test_what_is_focused_shows_and_what_is_folded_can_be_opened_by_key(adopted):
    assert re.search(r":focus-visible\s*\{[^}]*outline:\s*[1-9]", STYLE)
    assert "outline:none" not in STYLE.replace(" ", "")
    tags = [tag for tag, _ in Elements(render_html(adopted)).found]
    folded = [index for index, tag in enumerate(tags) if tag == "details"]
    assert folded
    assert all(tags[index + 1] == "summary" for index in folded)


def test_every_picture_has_a_name(adopted):
    pictures = [of for tag, of in Elements(render_html(swept_of(adopted))).found if tag == "svg"]
    assert len(pictures) >= 7
    assert all(of["role"] == "img" and of["aria-label"] for of in pictures)


def test_every_colour_that_the_style_uses_is_defined_in_light_and_in_dark():
    light, dark = re.findall(r":root \{([^}]*)\}", STYLE)
    colours = [set(re.findall(r"(--[a-z]+):", scheme)) for scheme in (light, dark)]
    assert colours[0] == colours[1]
    assert set(re.findall(r"var\((--[a-z]+)\)", STYLE)) <= colours[0]


def luminance(colour: str) -> float:
    """Of WCAG 2.2, from #rgb or #rrggbb."""
    digits = colour.removeprefix("#")
    digits = "".join(digit * 2 for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", re.findall(r":root \{([^}]*)\}", STYLE), ids=["light", "dark"])
def test_words_and_curves_stand_out_from_what_is_behind_them(scheme):
    """WCAG 2.2: 4.5 for text, 3 for graphical objects."""
    colours = dict(re.findall(r"--([a-z]+):(#[0-9a-f]+)", scheme))

    def contrast(front: str, back: str) -> float:
        dark, light = sorted((luminance(colours[front]), luminance(colours[back])))
        return (light + 0.05) / (dark + 0.05)

    for words in ("ink", "soft"):
        for behind in ("paper", "panel", "goodbg", "badbg", "unsurebg"):
            assert contrast(words, behind) >= 4.5, (words, behind)
    for words, behind in (("good", "goodbg"), ("bad", "badbg"), ("unsure", "unsurebg")):
        assert contrast(words, behind) >= 4.5, (words, behind)
    for curve in ("base", "cand", "saved", "spent", "rest"):
        assert contrast(curve, "paper") >= 3.0, curve
