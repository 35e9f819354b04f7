"""Comparisons of results: paired where both sent the same prompts, with what measuring at different times cannot exclude."""

import asyncio
import json
import shutil
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from netgain.deciding.compare.run import compare
from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.decide.narrate import Silence
from netgain.errors import UsageError
from netgain.measuring.measurement.ask import Ask
from netgain.measuring.measurement.measure import measure
from netgain.measuring.measurement.records import read_records, write_records
from netgain.measuring.measurement.result import RECORDS_FILE, read_measurement, write_measurement
from tests.deciding.compare.paced_server import paced_server
from tests.measuring.timing import LOOSE

KNOWN = ("devices=1,dtype=bf16",)
SAMPLES = Path(__file__).parents[2] / "measuring/measurement/samples"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Measurements of one workload: two of a server, and two of another that takes 30 % longer, in turns."""
    base = tmp_path_factory.mktemp("results")
    lines = [{"id": f"p{n}", "category": "c", "max_tokens": 8, "prompt": f"{'word ' * (n % 7)}{n}"} for n in range(24)]
    (base / "prompts.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    with paced_server(token_s=0.006, first_s=0.006) as quick, paced_server(token_s=0.0078, first_s=0.0078) as slow:
        for name, url in (("quick-1", quick), ("slow-1", slow), ("slow-2", slow), ("quick-2", quick)):
            ask = Ask(url=url, workload=str(base / "prompts.jsonl"), client=LOOSE)
            asyncio.run(measure(ask, base / name, Silence()))
            keep_pace(base / name, 0.006 if url == quick else 0.0078)
    return base


def keep_pace(result: Path, token_s: float) -> None:
    """Give every request the times of that pace and a little more, by turns: what is concluded from results must not depend on
    what else the machine did while they were measured."""
    rows, now_s = [], 0.0
    for number, row in enumerate(read_records(result / RECORDS_FILE)):
        stamps = [now_s + (1.0 + number % 5 / 100) * token_s * (place + 1) for place in range(8)]
        times = {
            "scheduled_s": now_s,
            "sent_s": now_s,
            "first_token_s": stamps[0],
            "first_text_s": stamps[0],
            "chunk_times_s": tuple(stamps),
            "finished_s": stamps[-1],
        }
        assert len(row.record.chunk_times_s) == len(stamps)
        rows.append(msgspec.structs.replace(row, record=msgspec.structs.replace(row.record, **times)))
        now_s = stamps[-1]
    write_records(rows, result / RECORDS_FILE)


def settings(tmp_path: Path, baseline: list[Path], candidate: list[Path], **fields: object) -> Settings:
    sides = [SideAsked(sources=tuple(map(str, side)), declared=KNOWN) for side in (baseline, candidate)]
    return Settings(output=tmp_path, baseline=sides[0], candidate=sides[1], **fields)


def test_results_of_the_same_prompts_are_paired_and_a_regression_is_found(folder, tmp_path):
    outcome = compare(settings(tmp_path, [folder / "quick-1"], [folder / "slow-1"]), Silence())
    verdict = outcome.analysis.verdict
    assert outcome.paired
    assert (verdict.decision, verdict.finding) == ("reject", "slower")
    assert verdict.primary.pairs == 24
    assert "within these two measurements" in verdict.scope
    assert any("Drift between the measurements cannot be excluded" in caveat for caveat in outcome.caveats)
    assert verdict.identity.compared == 24
    assert verdict.identity.holds


def test_a_gain_between_two_times_is_adopted_only_with_a_reason_given(folder, tmp_path):
    sides = [folder / "slow-1"], [folder / "quick-1"]
    verdict = compare(settings(tmp_path, *sides), Silence()).analysis.verdict
    assert (verdict.decision, verdict.finding) == ("inconclusive", "faster")
    assert "measured at different times" in verdict.reasons[0]
    assert '--override time="REASON"' in verdict.reasons[0]
    accepted = compare(settings(tmp_path, *sides, overrides=("time=one machine, idle, a minute apart",)), Silence())
    assert accepted.analysis.verdict.decision == "adopt"
    assert accepted.overrides == {"time": "one machine, idle, a minute apart"}
    assert any("a minute apart" in caveat for caveat in accepted.caveats)


def test_results_measured_in_turns_exclude_a_drift(folder, tmp_path):
    sides = [folder / "slow-1", folder / "slow-2"], [folder / "quick-1", folder / "quick-2"]
    outcome = compare(settings(tmp_path, *sides), Silence())
    assert outcome.analysis.verdict.decision == "adopt"
    assert next(row for row in outcome.fields if row.field == "time").state == "equal"
    assert "2 of each side" in outcome.analysis.verdict.scope


def test_results_that_tell_no_devices_and_number_types_are_not_adopted(folder, tmp_path):
    sides = [folder / "slow-1", folder / "slow-2"], [folder / "quick-1", folder / "quick-2"]
    asked = settings(tmp_path, *sides)
    unsaid = msgspec.structs.replace(asked, candidate=msgspec.structs.replace(asked.candidate, declared=()))
    verdict = compare(unsaid, Silence()).analysis.verdict
    assert (verdict.decision, verdict.finding) == ("inconclusive", "faster")
    assert "declare what they are (--candidate-is dtype=...,devices=...)" in verdict.reasons[0]


def test_what_only_one_repeat_tells_is_not_known_of_its_side(folder, tmp_path):
    silent = tmp_path / "silent"
    shutil.copytree(folder / "slow-2", silent)
    found = read_measurement(silent)
    write_measurement(
        msgspec.structs.replace(found, prompts=msgspec.structs.replace(found.prompts, digest=None)), silent
    )
    sides = [folder / "slow-1", silent], [folder / "quick-1", folder / "quick-2"]
    outcome = compare(settings(tmp_path, *sides), Silence())
    assert {row.field: row.state for row in outcome.fields}["workload"] == "unknown"


def test_the_throughput_of_results_is_that_of_whole_measurements(folder, tmp_path):
    """Sections of a result overlap in time, so their own spans say nothing of its throughput."""
    asked = [
        msgspec.structs.replace(
            settings(tmp_path, [folder / "slow-1"], [folder / "quick-1"]).baseline, declared=("devices=1",)
        ),
        msgspec.structs.replace(
            settings(tmp_path, [folder / "slow-1"], [folder / "quick-1"]).candidate, declared=("devices=2",)
        ),
    ]
    outcome = compare(Settings(output=tmp_path, baseline=asked[0], candidate=asked[1], kind="scaling"), Silence())
    for name, result in (("baseline", "slow-1"), ("candidate", "quick-1")):
        told = read_measurement(folder / result).summary.output_tokens_per_s
        assert outcome.scaling.tokens_per_s[name] == pytest.approx(told)
    assert outcome.scaling.efficiency_low is None, "one result of a side tells no spread"


def test_another_load_is_refused(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder / "slow-1", other)
    found = read_measurement(other)
    load = msgspec.structs.replace(found.load, text="closed loop, 4 requests in flight", concurrency=4)
    write_measurement(msgspec.structs.replace(found, load=load), other)
    with pytest.raises(UsageError, match=r"differ in load .*--override load"):
        compare(settings(tmp_path, [folder / "quick-1"], [other]), Silence())


def test_results_of_other_tools_are_compared_without_pairs(tmp_path):
    told = json.loads((SAMPLES / "vllm-bench-detailed.json").read_text())
    requests = len(told["ttfts"])
    for name, value in told.items():
        if isinstance(value, list) and len(value) == requests:
            told[name] = value * 6
    told["completed"] = told["num_prompts"] = 6 * requests
    (tmp_path / "before.json").write_text(json.dumps(told))
    told["itls"] = [[1.6 * gap for gap in gaps] for gaps in told["itls"]]
    for name in ("ttfts", "latencies"):
        told[name] = [1.6 * seconds for seconds in told[name]]
    (tmp_path / "after.json").write_text(json.dumps(told))
    outcome = compare(settings(tmp_path, [tmp_path / "before.json"], [tmp_path / "after.json"]), Silence())
    assert not outcome.paired
    assert outcome.analysis.e2e_median.ratio == pytest.approx(1 / 1.6, rel=0.05)
    assert "prompts not paired" in outcome.analysis.verdict.headline
    assert any("spread between prompts is in the interval" in caveat for caveat in outcome.caveats)


def test_what_is_no_result_is_refused_with_its_name(folder, tmp_path):
    good = folder / "quick-1"
    cases = {}
    for name in ("no-records", "cut-records", "cut-json"):
        shutil.copytree(folder / "slow-1", tmp_path / name)
        cases[name] = tmp_path / name
    (cases["no-records"] / "records.parquet").unlink()
    whole = (cases["cut-records"] / "records.parquet").read_bytes()
    (cases["cut-records"] / "records.parquet").write_bytes(whole[: len(whole) // 2])
    text = (cases["cut-json"] / "measurement.json").read_text()
    (cases["cut-json"] / "measurement.json").write_text(text[: len(text) // 2])
    cases["absent"] = tmp_path / "absent"
    cases["foreign"] = tmp_path / "foreign.json"
    cases["foreign"].write_text('{"rps": 12}')
    cases["figures"] = SAMPLES / "vllm-bench-summary.json"
    for name, path in cases.items():
        with pytest.raises(UsageError) as refused:
            compare(settings(tmp_path / "out", [good], [path]), Silence())
        assert path.name in str(refused.value), name
        assert "\n" not in str(refused.value), name
    with pytest.raises(UsageError, match="named on both sides"):
        compare(settings(tmp_path, [good], [good]), Silence())
    with pytest.raises(UsageError, match="named twice"):
        compare(settings(tmp_path, [good, good], [folder / "slow-1"]), Silence())
    with pytest.raises(UsageError, match="leave it out"):
        settings(tmp_path, [good], [folder / "slow-1"], control=True)


@pytest.mark.parametrize("damage", ["time", "tokens", "nan", "date", "deep"])
def test_a_result_that_tells_the_impossible_is_refused(damage, folder, tmp_path):
    shutil.copytree(folder / "slow-1", tmp_path / "odd")
    records, document = tmp_path / "odd/records.parquet", tmp_path / "odd/measurement.json"
    table = pq.read_table(records)
    changed = {"time": ("finished_s", -5.0), "tokens": ("output_tokens", -3), "nan": ("finished_s", float("nan"))}
    if damage in changed:
        name, value = changed[damage]
        place = table.schema.get_field_index(name)
        values = pa.array([value] * len(table), table.schema.field(place).type)
        pq.write_table(table.set_column(place, table.schema.field(place), values), records)
    elif damage == "date":
        found = read_measurement(tmp_path / "odd")
        write_measurement(msgspec.structs.replace(found, began_unix_s=1e300), tmp_path / "odd")
    else:
        document.write_bytes(
            b'{"unknown": ' + b"[" * 100_000 + b"]" * 100_000 + b"," + document.read_bytes().lstrip()[1:]
        )
    with pytest.raises(UsageError) as refused:
        compare(settings(tmp_path / "out", [folder / "quick-1"], [tmp_path / "odd"]), Silence())
    assert "odd" in str(refused.value)
