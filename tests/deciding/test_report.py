"""The report: complete, self-contained, escaped, readable again from its JSON, and drawn by a real browser."""

import io
import math
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.console import Console

from netgain.cost.machine import Machine, MachineProbe, ProductRate, ReadRate
from netgain.cost.roofline import StepCounts, StepWork
from netgain.cost.step_cost import StepCost, StepPoint
from netgain.deciding.decide.score import score
from netgain.deciding.diagnose.bottleneck import find_bottleneck
from netgain.deciding.diagnose.decompose import decompose
from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.experiment.agreement import Counted
from netgain.deciding.experiment.analyse import Terms, analyse
from netgain.deciding.experiment.block import Block
from netgain.deciding.experiment.checks import check_trial
from netgain.deciding.experiment.conduct import Trial
from netgain.deciding.experiment.observation import BASELINE, CANDIDATE, Observation
from netgain.deciding.experiment.resampling import resampling
from netgain.deciding.experiment.statistics import effect
from netgain.deciding.experiment.sweep import Crossover, LoadPoint, Sweep
from netgain.deciding.report import figures
from netgain.deciding.report.document import document_of
from netgain.deciding.report.html import render_html
from netgain.deciding.report.outcome import Asked, Outcome, arm_limits, arm_report, drafting
from netgain.deciding.report.terminal import print_summary
from netgain.deciding.report.write import write_report
from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.deciding.technique.facts import Facts
from netgain.deciding.verdict.document import Caveat
from netgain.deciding.verdict.store import read_verdict
from netgain.ledger.stage import Stage
from netgain.measuring.workload.slo import parse_slo

DRAWN = resampling(np.zeros(2, dtype=np.int64), np.arange(2), 0)
PROBE = MachineProbe(
    machine=Machine(cpu="c", cores=2, memory_bytes=1 << 34, kernel="Linux"),
    taken="2026-01-01T00:00:00+00:00",
    reads=(ReadRate(threads=2, bytes_per_s=20e9, array_bytes=1 << 30, repeats=5, by="C++"),),
    products=(ProductRate(dtype="q4_1", ops_per_s=1e11, threads=2, rows=256, repeats=9, kernels="cpp-v1"),),
)
WORK = StepWork(
    device="cpu",
    kernels="cpp-v1",
    step_weight_bytes=100_000_000,
    kv_token_bytes=20_000,
    layer_ops={"q4_1": 200_000_000},
    head_ops={"q4_1": 50_000_000},
    windowed=False,
)
COUNTS = StepCounts(
    decode_steps=100,
    decode_s=1.0,
    decode_context_tokens=20_000,
    prefill_steps=10,
    prefill_s=2.0,
    prefill_tokens=500,
    prefill_chosen=10,
)
HOSTILE = "<script>alert('x')</script>&\"m\""


def trial_of(make_record, speedup=2.0, groups=7, prompts=3, fails=False):
    """A B B A in which the candidate verifies drafts of three and commits two tokens a step."""
    observations, blocks, clock = [], [], 100.0
    for group in range(groups):
        for turn, arm in enumerate((BASELINE, CANDIDATE, CANDIDATE, BASELINE)):
            began = clock
            for prompt in range(prompts):
                fast = arm == CANDIDATE
                wobble = 1.0 + 0.004 * ((group * 7 + turn * 3 + prompt) % 5 - 2)
                record = make_record(
                    f"g{group}p{prompt}",
                    start_s=clock,
                    tokens=33,
                    token_s=0.01 * wobble / (speedup if fast else 1.0),
                    per_chunk=2 if fast else 1,
                    verify=fast,
                    draft_s=0.0005 if fast else 0.0,
                    prefill_s=0.08 * wobble,
                    output=tuple(range(5, 38)),
                    error="connection refused" if fails and fast else None,
                )
                observations.append(Observation(arm=arm, group=group, block=4 * group + turn, record=record))
                clock = record.finished_s
            blocks.append(
                Block(
                    index=4 * group + turn,
                    group=group,
                    repeat=turn // 2,
                    arm=arm,
                    started_s=began,
                    finished_s=clock,
                    idle_cpu={CANDIDATE if arm == BASELINE else BASELINE: 0.004},
                    foreign_cpu=0.02,
                    lateness_p99_s=0.0001,
                    client_void=None,
                    output_tokens=33 * prompts,
                    e2e_median_s=None if fails and fast else observations[-1].record.e2e_s,
                    concurrency=1,
                )
            )
    return Trial(observations=tuple(observations), blocks=tuple(blocks))


def outcome_of(trial, slo=None, model="default") -> Outcome:
    records = tuple(seen.record for seen in trial.observations if seen.arm == BASELINE)
    cost = StepCost(
        points=tuple(
            StepPoint(batch=1, tokens=n, context=c, seconds=0.01 * (1 + 0.03 * n)) for n in (1, 17) for c in (0, 999)
        )
    )
    facts = Facts(
        engine="netgain",
        engine_version="0.1.0",
        model=model,
        workload="edit",
        concurrency=1,
        decomposition=decompose(records),
        records=records,
        step_cost=cost,
    )
    hypotheses = rank(CATALOGUE, facts)
    prediction = hypotheses[0].prediction
    terms = Terms(promises_identity=True, slo=None if slo is None else parse_slo(slo))
    analysis = analyse(trial.observations, terms, check_trial(trial))
    drafted = drafting(seen.record for seen in trial.observations if seen.arm == CANDIDATE)
    return Outcome(
        created="2026-01-01T00:00:00+00:00",
        seconds=140.0,
        first_verdict_s=138.0,
        asked=Asked(
            model=model,
            workload="edit",
            workload_digest="d" * 64,
            prompts=21,
            prompts_available=45,
            output_tokens_at_most=64,
            concurrency=1,
            temperature=None,
            seed=0,
            slo=slo,
            minimum_effect=0.03,
            technique=None,
            form="quick",
        ),
        context={"cpu": "test processor", "cores_available": 2, "netgain": "0.1.0", "torch": None},
        server={"model": model},
        decomposition=facts.decomposition,
        bottleneck=find_bottleneck(facts),
        hypotheses=hypotheses,
        chosen="ngram",
        title="n-gram speculation (prompt lookup)",
        must_report=CATALOGUE["ngram"].must_report,
        prediction=prediction,
        analysis=analysis,
        stopped=None,
        arms=tuple(
            arm_report(name, ("netgain", "serve", model), trial.observations, trial.blocks, 400_000_000)
            for name in (BASELINE, CANDIDATE)
        ),
        blocks=trial.blocks,
        probe=PROBE,
        limits=tuple(arm_limits(name, StepCounts(), COUNTS, WORK, PROBE) for name in (BASELINE, CANDIDATE)),
        scores=score(prediction, analysis, drafted.committed_per_step if drafted else None),
        drafting=drafted,
        cache_state="cold at the start of each block",
        deploy=("netgain", "serve", model, "--speculation", "ngram"),
        deploy_note="switches checked with netgain 0.1.0",
        server_client_gap_s=0.001,
        looped_baseline=0.0,
        cannot_show=("Other loads.",),
    )


class Balanced(HTMLParser):
    VOID = frozenset({"meta", "br", "line", "rect", "circle", "path", "link", "img"})

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def adopted(make_record) -> Outcome:
    return outcome_of(trial_of(make_record), slo="ttft=500ms,itl.p99=50ms")


def test_it_is_one_file_without_scripts_or_network(adopted):
    page = render_html(adopted)
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert not parser.tags & {"script", "link", "img", "iframe", "object"}
    assert not re.search(r"""(src|href)\s*=|url\(|@import|https?://""", page)


def test_verdict_comes_first_and_every_part_is_there(adopted):
    page = render_html(adopted)
    order = [
        page.index(text)
        for text in (
            "ADOPT",
            "Net gain: what was saved",
            "Predicted before, measured after",
            "Distributions",
            "Where the time goes",
            "What cannot be concluded",
            "How close to the machine's limits",
            "Drafts",
            "Guards and validity",
            "Deploy, and when to go back",
            "What this cannot show",
            "Settings and versions",
        )
    ]
    assert order == sorted(order)
    assert "Requests that met the whole SLO" in page
    assert page.count("<svg") >= 6


def test_text_from_outside_is_escaped(make_record):
    page = render_html(outcome_of(trial_of(make_record), model=HOSTILE))
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_json_holds_everything_that_the_page_shows(adopted, tmp_path):
    path = write_report(adopted, tmp_path / "new" / "folder")
    again = msgspec.json.decode((path.parent / "decision.json").read_bytes(), type=Outcome)
    assert render_html(again) == path.read_text()


def test_the_verdict_names_the_engine_that_ran_and_its_own_version(adopted, tmp_path):
    write_report(msgspec.structs.replace(adopted, engine="vllm", engine_version="0.32.0"), tmp_path)
    arms = read_verdict(tmp_path).arms
    assert {(arm.engine, arm.version) for arm in arms} == {("vllm", "0.32.0")}


def test_caveats_of_this_engine_are_on_the_page_and_in_the_terminal(adopted):
    told = msgspec.structs.replace(
        adopted,
        caveats=(Caveat(says=f"Cache state not verified: {HOSTILE}."),),
        deploy=None,
        deploy_note="no command is given",
    )
    page = render_html(told)
    assert "Cache state not verified: &lt;script&gt;" in page
    assert HOSTILE not in page
    assert "No command is given." in page
    console = Console(record=True, width=120, file=io.StringIO())
    print_summary(told, console)
    shown = console.export_text()
    assert "Cache state not verified" in shown
    assert "no command is given" in shown


def test_what_servers_and_client_counted_stands_side_by_side(adopted):
    rows = (
        Counted(
            arm=CANDIDATE,
            figure="output_tokens",
            unit="tokens",
            name="vllm:generation_tokens_total",
            server=3001.0,
            client=2999.0,
            agree=False,
        ),
        Counted(arm=BASELINE, figure="cached_tokens", unit="tokens", name="c", server=7.0, client=None, agree=None),
    )
    told = msgspec.structs.replace(adopted, counted=rows)
    page = render_html(told)
    row = re.sub(r"<[^>]+>", " ", page[page.index("vllm:generation_tokens_total") - 300 :])
    assert re.search(r"output tokens\s+candidate\s+3001\s+2999\s+no\s+vllm:generation_tokens_total", row)
    assert re.search(r"cached tokens\s+baseline\s+7\s+unknown\s+not known", row)
    assert document_of(told).counted == rows


def test_every_kind_of_outcome_can_be_drawn(make_record, adopted):
    rejected = outcome_of(trial_of(make_record, speedup=0.5))
    assert "REJECT" in render_html(rejected)
    failing = outcome_of(trial_of(make_record, fails=True))
    assert "more requests fail" in render_html(failing)
    few = outcome_of(trial_of(make_record, groups=1))
    assert "too few to decide anything" in render_html(few)
    nothing = msgspec.structs.replace(
        adopted,
        analysis=None,
        prediction=None,
        chosen=None,
        title=None,
        scores=(),
        arms=(),
        blocks=(),
        drafting=None,
        stopped="No technique can be tried here.",
    )
    assert "No technique can be tried here." in render_html(nothing)
    for outcome in (adopted, rejected, failing, few, nothing):
        console = Console(record=True, width=100, file=Path("/dev/null").open("w"))  # noqa: SIM115
        print_summary(outcome, console)
        assert console.export_text().strip()


def test_the_terminal_says_verdict_prediction_and_command(adopted):
    console = Console(record=True, width=120, file=Path("/dev/null").open("w"))  # noqa: SIM115
    print_summary(adopted, console)
    text = console.export_text()
    for part in ("ADOPT", "predicted", "measured", "residual", "netgain serve", "Go back"):
        assert part in text


def swept_of(adopted) -> Outcome:
    points = tuple(
        LoadPoint(
            concurrency=load,
            in_flight=0.9 * load,
            effect=None if ratio is None else effect(math.log(ratio), np.array([-0.03, 0.0, 0.03]), DRAWN, 12),
            decision=decision,
            finding=finding,
            reasons=("because",),
            baseline_tokens_per_s=50.0 * load,
            candidate_tokens_per_s=None,
            predicted=predicted,
        )
        for load, ratio, decision, finding, predicted in (
            (1, 1.5, "adopt", "faster", 1.45),
            (4, 1.2, "adopt", "faster", None),
            (16, 0.8, "reject", "slower", 0.9),
            (64, None, "inconclusive", "unclear", None),
        )
    )
    crossover = Crossover(turn="ends", below=4, above=16, at=7.4, low=5.1, high=None, confidence=0.95)
    return msgspec.structs.replace(
        adopted,
        asked=msgspec.structs.replace(adopted.asked, loads=(1, 4, 16, 64)),
        sweep=Sweep(
            points=points,
            confidence=0.95,
            each=0.9875,
            pays_up_to=4,
            pays_from=None,
            crossover=crossover,
            crossover_says="the sign flips between 4 and 16 in flight",
            says="It pays up to 4 concurrent requests; at 16 it is slower (-20.0%)",
        ),
    )


def test_a_sweep_is_drawn_as_a_curve_and_told_in_a_sentence(adopted, tmp_path):
    outcome = swept_of(adopted)
    page = render_html(outcome)
    parser = Balanced()
    parser.feed(page)
    assert not parser.open
    assert page.index("Up to which load does it pay?") < page.index("Net gain: what was saved")
    assert "It pays up to 4 concurrent requests" in page
    assert page.count('class="dot-') == 3, "a load without an effect has no point"
    assert "The sign flips between 4 and 16" in page
    console = Console(record=True, width=120, file=Path("/dev/null").open("w"))  # noqa: SIM115
    print_summary(outcome, console)
    text = console.export_text()
    for part in ("speedup", "1.50x", "unknown", "50.0 -> unknown", "reject"):
        assert part in text
    write_report(outcome, tmp_path)
    document = read_verdict(tmp_path)
    assert document.sweep == outcome.sweep
    assert document.load.concurrency == (1, 4, 16, 64)


def test_a_chance_is_never_nothing():
    assert [figures.chance(value) for value in (0.0, 0.0004, 0.0006, 0.5)] == ["< 0.001", "< 0.001", "0.001", "0.500"]


def test_what_is_folded_away_is_printed(adopted, tmp_path, requires_browser):
    """A browser of today hides it by a pseudo-element, not by `display`."""
    page = render_html(adopted)
    assert "<details>" in page
    pages = []
    for name, text in (("folded", page), ("open", page.replace("<details>", "<details open>"))):
        (tmp_path / f"{name}.html").write_text(text, encoding="utf-8")
        target = tmp_path / f"{name}.pdf"
        command = [requires_browser, "--headless", "--no-sandbox", "--disable-gpu", f"--print-to-pdf={target}"]
        subprocess.run([*command, (tmp_path / f"{name}.html").as_uri()], capture_output=True, timeout=60, check=True)
        pages.append(len(re.findall(rb"/Type\s*/Page\b", target.read_bytes())))
    assert pages[0] == pages[1] > 1


def test_a_browser_draws_it(adopted, tmp_path, requires_browser):
    path = write_report(adopted, tmp_path)
    shot = tmp_path / "report.png"
    subprocess.run(
        [
            requires_browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--window-size=900,1600",
            f"--screenshot={shot}",
            path.as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    assert shot.read_bytes().startswith(b"\x89PNG")
    assert shot.stat().st_size > 40_000  # an empty page of this size has about 5 kB


def test_the_share_of_the_machine_is_told_with_the_date_of_the_probe(adopted):
    page = render_html(adopted)
    assert "10.4 GB/s" in page
    assert "52%" in page
    assert "50.2 GFLOP/s" in page
    assert "2026-01-01 00:00" in page
    console = Console(record=True, width=160, file=Path("/dev/null").open("w"))  # noqa: SIM115
    print_summary(adopted, console)
    assert "decode 10.4 GB/s of 20 GB/s (52%), prefill 50.2 GFLOP/s of 100 GFLOP/s (50%)" in console.export_text()


def test_a_machine_that_was_not_probed_is_said_to_be_so_and_never_zero(adopted):
    limits = tuple(arm_limits(arm, StepCounts(), COUNTS, WORK, None) for arm in (BASELINE, CANDIDATE))
    unknown = msgspec.structs.replace(adopted, probe=None, limits=limits)
    page = render_html(unknown)
    assert "not probed" in page
    assert "10.4 GB/s" in page, "what was reached is known all the same"
    console = Console(record=True, width=160, file=Path("/dev/null").open("w"))  # noqa: SIM115
    print_summary(unknown, console)
    assert "not probed" in console.export_text()
    silent = msgspec.structs.replace(adopted, limits=(arm_limits(BASELINE, None, None, None, PROBE),))
    assert "does not tell what its steps do" in render_html(silent)


def test_a_probe_of_a_busy_machine_is_marked(adopted):
    busy = msgspec.structs.replace(adopted, probe=msgspec.structs.replace(PROBE, busy=True))
    assert "shares too high" in render_html(busy)


def test_a_stage_that_is_saved_and_spent_is_scored_by_what_of_it_can_be_measured(adopted):
    """Joining chunks saves prefill and spends some of it again; the stage's measured time has both."""
    both = msgspec.structs.replace(
        adopted.prediction, saved_s={Stage.PREFILL: 0.181}, spent_s={Stage.PREFILL: 0.058, Stage.DRAFT: 0.001}
    )
    rows = {row.figure: row for row in score(both, adopted.analysis, None)}
    prefill = rows["prefill time saved per request"]
    assert prefill.predicted == pytest.approx(123.0)
    assert prefill.measured == adopted.analysis.waterfall.saved_ns[Stage.PREFILL] / 1e6
    assert "prefill time spent per request" not in rows
    assert "draft time spent per request" in rows
