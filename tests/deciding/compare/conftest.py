"""Settings of short comparisons."""

import json
from pathlib import Path

import pytest

from netgain.deciding.compare.settings import Settings, SideAsked
from netgain.deciding.experiment.arms.described import Described


def _side(given: str | Described | SideAsked) -> SideAsked:
    if isinstance(given, SideAsked):
        return given
    if isinstance(given, str):
        return SideAsked(sources=(given,))
    return SideAsked(sources=("an arm",), arm=given)


@pytest.fixture
def settings(tmp_path: Path):
    """Settings of a short comparison; a side is a URL, an arm to start, or a whole SideAsked."""
    lines = [{"id": f"p{n}", "category": "c", "max_tokens": 8, "prompt": f"{'word ' * (n % 7)}{n}"} for n in range(24)]
    workload = tmp_path / "prompts.jsonl"
    workload.write_text("\n".join(json.dumps(line) for line in lines))

    def settings(baseline, candidate, **fields: object) -> Settings:
        sides = [_side(baseline), _side(candidate)]
        fields = {"output": tmp_path / "out", "workload": str(workload), "quick": True, **fields}
        return Settings(baseline=sides[0], candidate=sides[1], **fields)

    return settings
