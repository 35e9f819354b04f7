"""What tiers hold and nobody may use is a miss, and metrics say what it was."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from netgain.ledger.prometheus import Exporter
from netgain.serving.runtime.llm import LLM
from netgain.serving.tiers.object import pack, unpack
from tests.serving.runtime.test_kv_tiers import answers, engine, expected, folder, settle

__all__ = ["expected", "folder"]


def metrics(llm: LLM) -> dict[tuple[str, str], float]:
    """The counters of the tier `disk` by name and reason, as /metrics has them."""
    exporter = Exporter()
    exporter.engine(llm.built.engine.tier_counters())
    text = generate_latest(exporter.registry).decode()
    form = r'netgain_kv_tier_(\w+)_total\{(?:reason="(\w+)",)?replica="0",(?:reason="(\w+)",)?tier="disk"\} (\S+)'
    return {(name, before or after): float(value) for name, before, after, value in re.findall(form, text)}


@pytest.mark.parametrize(("reason", "sealed"), [("forged", True), ("damaged", False)])
def test_what_is_refused_after_it_was_read_is_no_hit_and_counted_by_reason(
    reason: str, sealed: bool, folder: Path, tmp_path: Path, expected: list[tuple[int, ...]]
) -> None:
    place = tmp_path / "kv"
    vault = {"vault": str(tmp_path / "vault.json")} if sealed else {}
    with engine(folder, f"disk:{place}:64MiB", codec="zstd", codec_when="always", **vault) as llm:
        assert answers(llm) == expected
        settle(llm)
        spoilt = 0
        for file in place.rglob("*.kv"):
            one = unpack(file.read_bytes())
            last = one.payload[-1] ^ 1  # another byte, whatever it is
            spoiler = bytes(one.payload[:-1]) + bytes([last]) if sealed else bytes(one.payload[: len(one.payload) // 2])
            file.write_bytes(pack(msgspec.structs.replace(one, payload=spoiler)))  # every checksum is right
            spoilt += 1
        before = metrics(llm)
        assert spoilt
        assert (before["refused", "forged"], before["unread", "timeout"], before["unwritten", "queue_full"]) == (
            0,
            0,
            0,
        )
        assert answers(llm) == expected
        after = metrics(llm)
        assert after["refused", reason] > 0
        assert after["hits", ""] == before["hits", ""]
        assert after["misses", ""] - before["misses", ""] >= after["refused", reason]
        assert sum(value for (name, _), value in after.items() if name == "refused") == after["refused", reason]
