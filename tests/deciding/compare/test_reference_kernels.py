"""A server that computes with the reference kernels is said in every result that it has a part in."""

import asyncio
import json

import pytest

from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.decide.context import caveats_of
from netgain.deciding.decide.narrate import Silence
from netgain.deciding.decide.server import Served
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.measure import measure
from tests.deciding.compare.paced_server import paced_server
from tests.measuring.timing import LOOSE

REFERENCE = {
    "kernels": "torch-2.13.0-cpu-v3",
    "kernels_note": "torch kernels, because there is no compiler",
    "device": "cpu",
}
COMPILED = {"kernels": "compiled-avx2-v9", "kernels_note": None, "device": "cpu"}


def netgain(card):
    return paced_server(owner="netgain", card=json.dumps(card), token_s=0.002, first_s=0.002, most=2)


def said(caveats):
    return [caveat for caveat in caveats if "reference kernels (torch-2.13.0-cpu-v3" in caveat]


@pytest.fixture
def prompts(tmp_path):
    lines = [{"id": f"p{n}", "category": "c", "max_tokens": 2, "prompt": f"prompt {n}"} for n in range(8)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return str(tmp_path / "prompts.jsonl")


def test_measurements_and_their_comparison_say_so(prompts, tmp_path):
    found = {}
    with netgain(COMPILED) as compiled, netgain(REFERENCE) as reference:
        for name, url in (("compiled", compiled), ("reference", reference)):
            ask = Ask(url=url, workload=prompts, client=LOOSE)
            found[name] = asyncio.run(measure(ask, tmp_path / name, Silence()))
    assert said(found["compiled"].caveats) == []
    assert len(said(found["reference"].caveats)) == 1
    results = [SideAsked(sources=(str(tmp_path / name),)) for name in ("compiled", "reference")]
    outcome = compare(Settings(output=tmp_path / "out", baseline=results[0], candidate=results[1]), Silence())
    (caveat,) = said(outcome.caveats)
    assert caveat.startswith("candidate: ")


def test_a_comparison_of_running_servers_says_so(settings):
    with netgain(REFERENCE) as reference, netgain(COMPILED) as compiled:
        outcome = compare(settings(reference, compiled), Silence())
    (caveat,) = said(outcome.caveats)
    assert caveat.startswith("baseline: ")


def test_a_decision_says_so_once():
    told = {name: str(value) for name, value in REFERENCE.items()}
    (caveat,) = caveats_of(Served(name="m", told=told, work=None))
    assert said([caveat.says])
    compiled = {name: "null" if value is None else value for name, value in COMPILED.items()}
    assert caveats_of(Served(name="m", told=compiled, work=None)) == ()
