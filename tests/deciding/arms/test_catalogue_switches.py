"""A switch is called verified for another engine where a test marked `peers` starts that engine with it, and nowhere else."""

import pytest

from netgain.deciding.technique.catalogue import CATALOGUE
from netgain.errors import UsageError
from tests.deciding.arms.real_engines import STARTED

OTHERS = ("vllm", "sglang", "llama.cpp")
KINDS = ("model", "layers", "feature", "medusa", "eagle", "eagle3", "hf-medusa", "dflash", "dspark", "mtp")
# every setting that any technique's switch reads
SETTING = {
    "k": 4,
    "lookup_min": 2,
    "lookup_max": 3,
    "factor": 1.0,
    "kv_dtype": "int8",
    "tier": "dram",
    "gib": 1.0,
    "codec": "int8",
}


def switches():
    """Every switch of the catalogue for another engine, with the technique's name."""
    for name, technique in CATALOGUE.items():
        for engine in OTHERS:
            for kind in KINDS:
                try:
                    yield name, technique.switch_on(engine, {**SETTING, "draft": "d.gguf", "kind": kind})
                except UsageError:
                    continue


def test_the_verified_switches_are_those_that_start_the_real_engines():
    verified = {(name, switch.engine) for name, switch in switches() if switch.verified}
    assert verified == set(STARTED)


@pytest.mark.parametrize("engine", OTHERS)
def test_every_other_switch_says_where_it_was_read(engine):
    unverified = [switch for _, switch in switches() if switch.engine == engine and not switch.verified]
    assert unverified
    for switch in unverified:
        assert switch.read_from
        assert "no command is given" in switch.note
