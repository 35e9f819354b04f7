"""What may be asked of the experiment on KV tiers, its prompts, and how its servers differ."""

from pathlib import Path

import pytest

from netgain.deciding.kv.conduct import order
from netgain.deciding.kv.page_cache import Forgotten, forget_files
from netgain.deciding.kv.prompts import MIXED, Writer, items
from netgain.deciding.kv.servers import flags
from netgain.deciding.kv.settings import BLOCK_TOKENS, Settings
from netgain.deciding.kv.steps import SERVERS, STEPS
from netgain.errors import UsageError


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tokens": 16}, "16 tokens"),
        ({"prompts": 2}, "--prompts"),
        ({"repeats": 0}, "--repeats"),
        ({"output_tokens": 1}, "--max-tokens"),
        ({"seed": -1}, "seed"),
        ({"dram": "much"}, "a size"),
        ({"disk": "0GiB"}, "holds nothing"),
        ({"bandwidth": "200MB"}, "a bandwidth"),
        ({"latency": "soon"}, "a time"),
        ({"serve_flags": ("engine.cache.kv_tokens=4096",)}, "engine.cache.kv_tokens"),
        ({"serve_flags": ("engine.kv.policy=never",)}, "engine.kv.policy"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(values, said):
    with pytest.raises(UsageError, match=said):
        Settings(output=Path("out"), **values)


@pytest.mark.parametrize("quick", [True, False])
def test_other_prompts_push_a_prompt_out_of_the_device_before_it_comes_back(quick):
    settings = Settings(output=Path("out"), quick=quick)
    form, room = settings.form, settings.room_tokens // BLOCK_TOKENS
    assert settings.longest_tokens <= settings.room_tokens, "one request fits"
    assert (form.prompts - 1) * (form.tokens // BLOCK_TOKENS) > room


def test_no_two_texts_begin_alike_unless_they_are_to():
    writer = Writer(1.3, seed=7)
    texts = [writer.text(200) for _ in range(20)] + writer.mixed(400, 2)
    shared = [place for place in range(len(texts)) if place >= 20 and (place - 20) % MIXED == MIXED - 1]
    beginnings = [text.split()[0] for place, text in enumerate(texts) if place not in shared]
    assert len(set(beginnings)) == len(beginnings)
    for place in shared:
        first = texts[place - MIXED + 1].split()
        assert texts[place].split()[: len(first) // 2] == first[: len(first) // 2]
        assert texts[place] != texts[place - MIXED + 1]


def test_texts_are_as_long_as_asked_and_the_same_for_the_same_seed():
    one, again = Writer(1.3, seed=1).text(260), Writer(1.3, seed=1).text(260)
    assert one == again != Writer(1.3, seed=2).text(260)
    assert len(one.split()) == 1 + 200
    (item,) = items([one], "tag", 8)
    assert item.problem() is None
    assert (item.max_tokens, item.ignore_eos) == (8, True)


def test_servers_differ_in_their_cache_alone():
    settings = Settings(
        output=Path("out"), bandwidth="0.8Gbit/s", latency="2ms", serve_flags=("engine.scheduler.max_running=4",)
    )
    by_name = {name: flags(name, settings, Path("/disk")) for name in SERVERS}
    common = set.intersection(*map(set, by_name.values()))
    assert f"engine.cache.kv_tokens={settings.room_tokens}" in common
    assert "engine.scheduler.max_running=4" in common
    assert "dram:1024MiB?bandwidth=100MB/s&latency=2ms" in by_name["dram"]
    assert "disk:/disk:2048MiB?bandwidth=100MB/s&latency=2ms" in by_name["disk"]
    assert by_name["load"][by_name["load"].index("--kv-policy") + 1] == "always"
    assert "engine.cache.prefix_caching=false" in by_name["off"]
    assert not any("--kv-tier" in by_name[name] for name in ("off", "device"))


@pytest.mark.parametrize("plan", STEPS, ids=lambda plan: plan.name)
def test_roles_take_turns_at_going_first(plan):
    turns = 2 * len(plan.roles)
    orders = [order(plan, turn) for turn in range(turns)]
    assert all(sorted(role.name for role in one) == sorted(role.name for role in plan.roles) for one in orders)
    firsts = [one[0].name for one in orders]
    if plan.name == "off":
        assert set(firsts) == {"first"}, "a second request follows a first"
    else:
        assert all(firsts.count(role.name) == 2 for role in plan.roles)


def test_a_folder_is_forgotten_and_looked_at(tmp_path):
    for name in ("a.kv", "b.kv", "other"):
        (tmp_path / name).write_bytes(b"x" * 100_000)
    found = forget_files(tmp_path)
    assert found.files == 2
    assert found.resident in (0, None), "None: a file system in memory"


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (Forgotten(files=3, resident=0), None),
        (Forgotten(files=3, resident=1), "1 of 3 files"),
        (Forgotten(files=3, resident=None), "does not tell"),
        (Forgotten(files=0, resident=0), "no files"),
    ],
)
def test_what_is_not_from_the_disk_is_said(found, said):
    assert (found.says is None) if said is None else (said in found.says)
