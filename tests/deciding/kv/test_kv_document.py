"""The experiment's document and page: self-contained, escaped, read back, and nothing shown that is not known."""

import io
import re
import subprocess

import msgspec
import pytest
from rich.console import Console

from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.kv.break_even import break_evens
from netgain.deciding.kv.experiment import caveats
from netgain.deciding.kv.judging import EACH, judge
from netgain.deciding.kv.outcome import Asked, KVExperiment
from netgain.deciding.kv.page import render_experiment
from netgain.deciding.kv.page_cache import Forgotten
from netgain.deciding.kv.show import show
from netgain.deciding.kv.write import read_experiment, write_experiment
from netgain.errors import UsageError


@pytest.fixture
def outcome(trial):
    def build(**values) -> KVExperiment:
        found = trial(**values)
        steps = judge(found, 0)
        return KVExperiment(
            created="2026-01-01T00:00:00+00:00",
            seconds=100.0,
            asked=Asked(
                form="quick",
                model="<m>",
                prompt_tokens=400,
                output_tokens=3,
                prompts=4,
                repeats=2,
                room_tokens=640,
                dram="1GiB",
                disk="2GiB",
                bandwidth=None,
                latency=None,
                settings=(),
                seed=0,
            ),
            confidence=EACH,
            steps=steps,
            caveats=tuple(caveats(found, steps, None, {})),
            cannot_show=("other loads",),
            server={"model": "<m>"},
            commands={"off": ("netgain", "serve", "<m>")},
            context={"netgain": "1", "torch": None},
        )

    return build


def test_the_page_says_each_step_in_a_word_and_is_self_contained(outcome):
    page = render_experiment(outcome())
    assert "<m>" not in page
    assert "&lt;m&gt;" in page
    assert "http" not in page
    assert "Warm from DRAM against cache off: a gain" in page
    assert page.count('<section id="') == 6
    assert page.count("<svg") == 1
    for told in ("Loads chosen", "Recomputes chosen", "bias", "p99", "Evicted", "Promoted", "Looking up", "no hit"):
        assert told in page
    assert not re.search(r"\bNone\b|\bnan\b", page)


def test_break_even_is_told_by_link_and_where_it_is_not_known_nothing_is(outcome, trial) -> None:
    points = [StepPoint(batch=1, tokens=t, context=c, seconds=5e-4 * t) for t in (1, 512) for c in (0, 2048)]
    told = {"kv_token_bytes": "23040", "max_model_len": "1024", "max_batch_tokens": "512"}
    measured = trial()
    steps = judge(measured, 0)
    found = break_evens(steps, measured.windows, StepCost(points=tuple(points)), told)
    by_link = {one.link: one for one in found}
    assert by_link["shaped to 20 MB/s"].says == "never, up to 1024"
    assert by_link["shaped to 20 MB/s"].tokens is None
    assert by_link["shaped to 1000 MB/s"].says == "always"
    dram = by_link["DRAM tier, as loads were waited for"]
    assert dram.bytes_per_s == pytest.approx(8e6 / 0.01)
    assert dram.latency_s == pytest.approx(0.001), "the lookup"
    shown = msgspec.structs.replace(outcome(), break_even=found)
    page = render_experiment(shown)
    console = Console(record=True, width=140, file=io.StringIO())
    show(shown, console)
    for told_there in (page, console.export_text()):
        assert "DRAM tier, as loads were waited for" in told_there
        assert "never, up to 1024" in told_there
    assert break_evens(steps, measured.windows, None, told) == ()
    assert break_evens(steps, measured.windows, StepCost(points=tuple(points)), {}) == ()
    assert "Break-even" not in render_experiment(outcome())


def test_the_document_is_read_back_and_another_is_refused_by_name(outcome, tmp_path):
    told = outcome()
    assert write_experiment(told, tmp_path / "out") == tmp_path / "out/report.html"
    assert read_experiment(tmp_path / "out") == told
    tree = msgspec.json.decode((tmp_path / "out/kv-experiment.json").read_bytes())
    assert (tree["schema"], tree["version"]) == ("netgain.kv-experiment", 1)
    (tmp_path / "other.json").write_bytes(msgspec.json.encode(tree | {"version": 99}))
    with pytest.raises(UsageError, match="version 99"):
        read_experiment(tmp_path / "other.json")


def test_the_terminal_says_the_same(outcome):
    console = Console(record=True, width=140, file=io.StringIO())
    show(outcome(cold=1.1), console)
    text = console.export_text()
    assert "1. Cache off, two requests" in text
    assert "a loss, the first token took" in text
    assert "a regret of" in text


def test_what_spoils_the_experiment_is_a_caveat(trial):
    found = trial(forgotten=(Forgotten(files=8, resident=None),) * 2, late=90)
    said = caveats(found, judge(found, 0), "no room", {"kernels": "torch-2.13.0-cpu-v3", "device": "cpu"})
    assert "reference kernels (torch-2.13.0-cpu-v3" in said[0]
    assert sum("does not tell whether the tier's files" in one for one in said) == 1
    assert any("could not be measured (no room)" in one for one in said)
    assert any("requests late" in one for one in said)
    assert caveats(trial(), judge(trial(), 0), None, {"kernels": "compiled"}) == []


def test_an_experiment_that_shows_nothing_about_loading_tells_nothing(outcome):
    assert outcome().tells
    assert not outcome(warm=1.0).tells
    assert outcome().wrong_answers == 0


def test_a_browser_draws_it(outcome, tmp_path, requires_browser):
    path = write_experiment(outcome(), tmp_path)
    shot = tmp_path / "report.png"
    command = [
        requires_browser,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    subprocess.run(
        [*command, "--window-size=1100,2000", f"--screenshot={shot}", path.as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert shot.stat().st_size > 60_000
