"""The rule of equal resources on its own: what is equal, what refuses, and that unknown is never taken for equal."""

import pytest

from netgain.deciding.compare.rule import overrides_of, rule
from netgain.deciding.compare.told import told_traits
from netgain.deciding.compare.traits import DECLARABLE, Trait, canonical, declared, written
from netgain.errors import UsageError
from netgain.measuring.measurement.result import Server

BASE = {
    "model": "m",
    "weights": "aa",
    "dtype": "bf16",
    "device": "cpu",
    "devices": 1,
    "memory": 10**9,
    "kv_tokens": 100,
}


def traits(**changed):
    found = {name: value for name, value in {**BASE, **changed}.items() if value is not None}
    return {name: Trait(value, "server") for name, value in found.items()}


def ruled(baseline, candidate, kind="equal resources", *overrides):
    return rule(baseline, candidate, kind, overrides_of(overrides), DECLARABLE)


@pytest.mark.parametrize(
    ("name", "value", "same_as"),
    [
        ("dtype", "torch.bfloat16", "bf16"),
        ("dtype", "q8_0+BF16", "bf16+q8_0"),
        ("kv_dtype", "auto", None),
        ("memory", "24GiB", 24 * 2**30),
        ("memory", "80GB", 80 * 10**9),
        ("devices", "2", 2),
        ("devices", "two", None),
        ("devices", 0, None),
        ("max_length", "4k", None),
        ("memory", "lots", None),
    ],
)
def test_a_value_is_compared_in_one_form_or_says_nothing(name, value, same_as):
    assert canonical(name, value) == same_as


@pytest.mark.parametrize(
    "changed", [{"weights": "bb"}, {"dtype": "q4_1"}, {"devices": 2}, {"memory": 2 * 10**9}, {"device": "H200"}]
)
def test_a_difference_refuses_and_is_named_with_both_values(changed):
    ((name, value),) = changed.items()
    with pytest.raises(UsageError) as refused:
        ruled(traits(), traits(**changed))
    assert f"{name} ({written(name, BASE[name])} against {written(name, value)})" in str(refused.value)
    assert f"--override {name}=" in str(refused.value)
    allowed = ruled(traits(), traits(**changed), "equal resources", f"{name}=because")
    assert {row.field: row.reason for row in allowed.rows}[name] == "because"
    assert any("because" in caveat for caveat in allowed.caveats)


def test_unknown_is_said_and_never_taken_for_equal():
    ruling = ruled(traits(dtype=None), traits())
    assert {row.field: row.state for row in ruling.rows}["dtype"] == "unknown"
    assert not ruling.same_model
    assert any("not known to be equal: dtype" in caveat for caveat in ruling.caveats)
    assert ruled(traits(kv_dtype="bf16"), traits(kv_dtype="bf16")).same_model


def test_a_type_of_kv_that_one_side_does_not_tell_leaves_the_model_unknown():
    """A rounded cache may answer worse: "fp8" beside a server that says nothing is not the same number types."""
    assert not ruled(traits(), traits(kv_dtype="fp8")).same_model
    assert not ruled(traits(), traits()).same_model, "nobody tells"
    assert ruled(traits(kv_dtype="bf16"), traits(kv_dtype="bf16")).same_model


def test_the_digest_of_the_weights_outranks_names_and_memory_outranks_tokens():
    ruling = ruled(traits(), traits(model="another name", kv_tokens=200))
    states = {row.field: row.state for row in ruling.rows}
    assert states["model"] == states["kv_tokens"] == "not needed"
    with pytest.raises(UsageError, match=r"model .*, kv_tokens"):
        ruled(traits(weights=None, memory=None), traits(model="another name", kv_tokens=200, weights=None))


def test_memory_within_a_percent_is_the_same():
    assert {row.field: row.state for row in ruled(traits(), traits(memory=10**9 + 10**6)).rows}["memory"] == "equal"


def test_scaling_lets_resources_differ_but_neither_the_model_nor_the_kind_of_device():
    ruling = ruled(traits(), traits(devices=4, memory=4 * 10**9, kv_tokens=400), "scaling")
    assert (ruling.per, ruling.factor) == ("devices", 4.0)
    for changed in ({"dtype": "q4_1"}, {"device": "H200"}):
        with pytest.raises(UsageError, match=next(iter(changed))):
            ruled(traits(), traits(devices=2, **changed), "scaling")
    with pytest.raises(UsageError, match="have the same: leave it out"):
        ruled(traits(), traits(), "scaling")


def test_what_sglang_says_of_its_ranks_are_its_devices():
    said = {"tp_size": 2, "pp_size": 1, "dp_size": 2}
    assert told_traits(Server(url=None, model="m", engine="sglang", said=said))["devices"].value == 4
    shared = {**said, "enable_dp_attention": True}
    assert told_traits(Server(url=None, model="m", engine="sglang", said=shared))["devices"].value == 2
    assert "devices" not in told_traits(Server(url=None, model="m", engine="sglang", said={"tp_size": 2}))


def test_declarations_come_from_a_file_as_well(tmp_path):
    (tmp_path / "side.toml").write_text('dtype = "bf16"\ndevices = 2\nmemory = "24GiB"\n')
    found = declared([str(tmp_path / "side.toml"), "device=L4"], "baseline")
    assert {name: trait.value for name, trait in found.items()} == {
        "dtype": "bf16",
        "devices": 2,
        "memory": 24 * 2**30,
        "device": "L4",
    }
    (tmp_path / "wrong.toml").write_text("dtype = ")
    with pytest.raises(UsageError, match="is no TOML"):
        declared([str(tmp_path / "wrong.toml")], "baseline")
    with pytest.raises(UsageError, match="declares devices as 'many'"):
        declared(["devices=many"], "baseline")
