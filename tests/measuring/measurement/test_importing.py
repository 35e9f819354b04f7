"""Results of other tools, written by those tools against a server whose times are known, except where a test says otherwise."""

import json
from pathlib import Path

import pytest

from netgain.errors import UsageError
from netgain.measuring.measurement.importing import import_result, read_result
from netgain.measuring.measurement.records import read_records
from netgain.measuring.measurement.result import Measurement, Tool, read_measurement
from netgain.measuring.workload.slo import parse_slo

SAMPLES = Path(__file__).parent / "samples"


def read(name: str) -> Measurement:
    return read_result(SAMPLES / name)[0]


def test_vllm_bench_with_its_requests() -> None:
    """vLLM 0.32, `--save-detailed`, against its own server."""
    said = json.loads((SAMPLES / "vllm-bench-detailed.json").read_text())
    found = read("vllm-bench-detailed.json")
    assert found.source.tool == "vllm bench serve"
    assert found.server.model == "m"
    assert found.load.text == "open loop, Poisson 2 requests/s"
    assert found.summary.requests == said["completed"] == 8
    assert found.summary.output_tokens == said["total_output_tokens"]
    assert found.summary.tpot.mean == pytest.approx(said["mean_tpot_ms"] / 1e3, rel=0.01)
    waited_s = sum(said["queue_times"]) / 8
    assert found.summary.ttft.mean == pytest.approx(said["mean_ttft_ms"] / 1e3 + waited_s, rel=1e-3)
    assert found.summary.little is not None
    assert abs(found.summary.little.deviation) < 0.05


def test_vllm_bench_with_figures_only() -> None:
    """vLLM 0.32 without `--save-detailed`."""
    said = json.loads((SAMPLES / "vllm-bench-summary.json").read_text())
    found = read("vllm-bench-summary.json")
    assert found.records is None
    assert (found.load.kind, found.load.concurrency) == ("closed", 2)
    assert found.summary.ttft.p99 == pytest.approx(said["p99_ttft_ms"] / 1e3)
    assert found.summary.chunk_gap.p50 == pytest.approx(said["median_itl_ms"] / 1e3), "its ITL is a gap between chunks"
    assert found.summary.itl.p50 is None
    assert found.summary.chunk_gap.count is None
    assert "save-detailed" in found.caveats[0]
    judged, _ = read_result(SAMPLES / "vllm-bench-summary.json", slo=parse_slo("ttft=1s"))
    assert judged.summary.attainment is None
    assert "cannot be judged" in judged.caveats[-1]


def test_guidellm() -> None:
    """guidellm 0.8.1 against a server with 20 ms between tokens; its own figures cut from the file, requests as they were."""
    found, imported = read_result(SAMPLES / "guidellm-0.8.1.json", slo=parse_slo("ttft=1s,itl=30ms"))
    assert (found.source.tool, found.source.version) == ("guidellm", "0.8.1")
    assert (found.load.kind, found.load.rate_per_s) == ("constant", 3.0)
    assert found.summary.requests == len(imported.records) == 10
    assert found.summary.itl.p50 == pytest.approx(0.02, rel=0.02)
    assert found.summary.output_tokens == 120
    assert found.summary.lateness.p50 is not None
    assert found.summary.ttft.p50 == pytest.approx(0.021 + found.summary.lateness.p50, abs=0.01), "from when it was due"
    assert found.summary.attainment == 1.0
    assert found.began_unix_s == pytest.approx(1796012366.9, abs=1.0)


def test_inference_perf() -> None:
    """inference-perf 0.7.0 against the same kind of server. Its own count is 156 tokens for each answer of 12, since it
    tokenises the text again (kubernetes-sigs/inference-perf#577)."""
    found = read("inference-perf-0.7.0.json")
    assert found.source.tool == "inference-perf"
    assert found.server.model == "scripted"
    assert found.summary.output_tokens == 6 * 12
    assert found.summary.tokens_source == {"usage": 6}
    assert found.summary.tpot.p50 == pytest.approx(0.02, rel=0.03)
    assert found.summary.lateness.p50 is None, "the report does not say when requests were due"


def test_aiperf() -> None:
    """aiperf 0.13.0 against the same kind of server. It, too, counts 156 tokens where the server counts 12."""
    found, imported = read_result(SAMPLES / "aiperf-0.13.0.jsonl", slo=parse_slo("ttft=1s"))
    assert found.source.tool == "aiperf"
    assert found.summary.requests == 10
    assert found.summary.output_tokens == 120
    assert found.summary.tpot.p50 == pytest.approx(0.02, rel=0.02)
    assert found.summary.lateness.p50 is not None, "from its credits"
    assert found.began_unix_s == pytest.approx(1796014080.99, abs=0.1)
    assert all(record.first_token_s == record.chunk_times_s[0] for record in imported.records)


def test_an_import_is_written_like_a_measurement(tmp_path: Path) -> None:
    done = import_result(SAMPLES / "guidellm-0.8.1.json", None, tmp_path / "out")
    assert read_measurement(tmp_path / "out") == read_measurement(tmp_path / "out" / "measurement.json")
    assert read_measurement(tmp_path / "out").summary.requests == done.summary.requests
    rows = read_records(tmp_path / "out" / "records.parquet")
    assert len(rows) == 10
    assert rows[0].record.scheduled_s == 0.0
    assert {row.record.output_tokens for row in rows} == {12}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no result of"),
        (b"{}", "no result of"),
        (b"[]", "no result of"),
        (b"\xff\xfe", "no result of"),
        (b'{"schema": "netgain.measurement", "version": 3}', "a netgain.measurement already"),
        (b'{"benchmarks": [], "metadata": {"guidellm_version": "0.8"}}', "0 benchmarks"),
        (b'{"aiperf_version": "0.13.0"}', "give profile_export.jsonl of the same folder"),
        (b'{"backend": "openai", "completed": 3}', "cannot be read as a result of vllm bench serve"),
        (b'[{"info": {}, "start_time": "x"}]', "cannot be read as a result of inference-perf"),
    ],
)
def test_what_cannot_be_read_is_said(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_result(path)


def test_a_value_that_is_no_number_is_refused(tmp_path: Path) -> None:
    said = json.loads((SAMPLES / "vllm-bench-detailed.json").read_text())
    said["request_rate"] = "fast"
    (tmp_path / "odd.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match=r"odd\.json cannot be read as a result of vllm bench serve"):
        read_result(tmp_path / "odd.json")


@pytest.mark.parametrize("tokens", [2**70, -1])
def test_a_request_of_impossibly_many_tokens_is_refused(tokens: int, tmp_path: Path) -> None:
    said = json.loads((SAMPLES / "vllm-bench-detailed.json").read_text())
    said["input_lens"][0] = tokens
    (tmp_path / "odd.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match=f"a request with {tokens} tokens"):
        read_result(tmp_path / "odd.json")


@pytest.mark.parametrize("first_s", [1e308, 1e9])
def test_a_request_of_an_impossible_time_is_refused(first_s: float, tmp_path: Path) -> None:
    said = json.loads((SAMPLES / "vllm-bench-detailed.json").read_text())
    said["ttfts"][0] = first_s
    (tmp_path / "odd.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match="s after it was sent"):
        read_result(tmp_path / "odd.json")


def test_a_damaged_result_is_refused(tmp_path: Path) -> None:
    said = json.loads((SAMPLES / "vllm-bench-detailed.json").read_text())
    said["ttfts"] = said["ttfts"][:-1]
    (tmp_path / "cut.json").write_text(json.dumps(said))
    with pytest.raises(UsageError, match="8 start times, but 7 ttfts"):
        read_result(tmp_path / "cut.json")


@pytest.mark.parametrize("name", ["vllm-bench-summary.json", "vllm-bench-detailed.json"])
def test_numbers_that_are_none_in_pythons_json_are_unknown(name: str, tmp_path: Path) -> None:
    """Python writes NaN and Infinity, which are no JSON; a mean of nothing is such a number."""
    said = json.loads((SAMPLES / name).read_text())
    said["mean_ttft_ms"], said["request_rate"], said["note"] = float("nan"), float("inf"), "NaN in a text stays"
    (tmp_path / "result.json").write_text(json.dumps(said))
    found, _ = read_result(tmp_path / "result.json")
    assert found.summary.requests == said["completed"]
    if "summary" in name:
        assert found.summary.ttft.mean is None
    said["ttfts"] = [float("nan")] * len(said.get("ttfts") or [0])
    said["start_times"] = said.get("start_times") or [0.0]
    (tmp_path / "result.json").write_text(json.dumps(said))
    if "detailed" in name:
        with pytest.raises(UsageError, match=r"ttfts"):
            read_result(tmp_path / "result.json")


@pytest.mark.parametrize("tool", [None, "vllm bench serve", "guidellm", "aiperf", "inference-perf"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe{\x00",
        b"[" * 100_000,
        b'{"aiperf_version": ' + b"[" * 100_000,
        b'{"request_start_ns": NaN}',
        b'{"metadata": {"request_start_ns": 1, "request_end_ns": 123456789012345678901234567890}, "metrics": {}}',
        b'{"metadata": {"request_start_ns": 1, "request_end_ns": 2}, "metrics": {}, "error": {"code": 99999999999999999999}}',
    ],
)
def test_whatever_a_file_holds_it_is_read_or_refused_in_one_line(
    content: bytes, tool: Tool | None, tmp_path: Path
) -> None:
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(UsageError) as refused:
        import_result(tmp_path / "result.json", tool, tmp_path / "out")
    assert "\n" not in str(refused.value)
