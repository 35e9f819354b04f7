"""Techniques with a draft of their own: predicted from measured survival, step cost and the cost of a pass; switched on where it
was tried, and never said to be deployable where it was not."""

import json

import msgspec
import pytest

from netgain.deciding.diagnose.hypotheses import rank
from netgain.deciding.technique.catalogue import CATALOGUE, technique
from netgain.deciding.technique.drafter import Drafter, read_drafter
from netgain.errors import UsageError
from netgain.ledger.stage import Stage
from tests.deciding.test_ngram_prediction import FRESH, curve, facts

DRAFTER = Drafter(
    source="there/heads",
    kind="feature",
    survival=(0.6, 0.3, 0.1),
    origin="its manifest",
    pass_cost=0.1,
    cost_basis="as given",
    token_bytes=1152,
)
MODEL = msgspec.structs.replace(DRAFTER, kind="layers", source="there/layers")
BOTH = {name: CATALOGUE[name] for name in ("draft", "heads")}


def predicted(make_record, drafter=DRAFTER, **changes):
    found = facts(make_record, [FRESH] * 3, drafter=drafter, **changes)
    return technique("heads" if not drafter.is_model else "draft").predict(found)


def test_the_prediction_is_survival_over_the_cost_of_a_wider_step_and_its_passes(make_record):
    prediction = predicted(make_record, marginal=0.05)
    assert prediction.setting["k"] == 2
    # with k drafts: 1 + sum of survival, over 1 + 0.05 k for the wider step and 0.1 k for the passes
    by_length = {one.setting["k"]: one for one in prediction.considered}
    assert set(by_length) == {1, 2, 3}
    speedups = {k: 33 / (33 / (1 + s) * (1 + 0.15 * k)) for k, s in ((1, 0.6), (2, 0.9), (3, 1.0))}
    assert prediction.speedup_tpot == pytest.approx(speedups[2], rel=0.02)
    assert prediction.committed_per_step == pytest.approx(1.9)
    assert max(speedups, key=speedups.get) == 2
    assert prediction.net_s == pytest.approx(sum(prediction.saved_s.values()) - sum(prediction.spent_s.values()))
    assert prediction.spent_s[Stage.DRAFT] > 0


def test_heads_that_draft_in_one_pass_pay_for_one(make_record):
    chain = predicted(make_record)
    once = predicted(make_record, msgspec.structs.replace(DRAFTER, kind="medusa", one_pass=True))
    assert once.net_s > chain.net_s


def test_leaving_it_off_is_an_answer(make_record):
    assert predicted(make_record, marginal=0.9).off_is_better
    assert predicted(make_record, msgspec.structs.replace(DRAFTER, pass_cost=0.9)).off_is_better
    assert predicted(make_record, msgspec.structs.replace(DRAFTER, survival=(0.05,))).off_is_better


def test_neither_survival_nor_step_cost_is_extrapolated(make_record):
    sure = msgspec.structs.replace(DRAFTER, survival=(1.0,) * 3)
    assert predicted(make_record, sure, marginal=0.0).setting["k"] == 3
    known = facts(make_record, [FRESH], drafter=sure, step_cost=curve(0.0, widest=3))
    assert technique("heads").predict(known).setting["k"] == 2


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"drafter": None}, "no draft was named"),
        ({"drafter": MODEL}, "a model and not a head"),
        ({"drafter": msgspec.structs.replace(DRAFTER, survival=None)}, "was not measured"),
        ({"drafter": msgspec.structs.replace(DRAFTER, pass_cost=None)}, "--draft-cost"),
        ({"drafter": DRAFTER, "step_cost": None, "step_cost_missing": "busy"}, "busy"),
        ({"drafter": DRAFTER, "synthetic_text": True}, "synthetic text"),
    ],
)
def test_what_is_not_known_is_said_and_not_guessed(make_record, changes, reason):
    assert reason in technique("heads").cannot_apply(facts(make_record, [FRESH], **changes))


def test_only_the_technique_of_the_drafts_kind_applies(make_record):
    first, second = rank(BOTH, facts(make_record, [FRESH], drafter=MODEL))
    assert first.technique == "draft"
    assert first.prediction is not None
    assert second.prediction is None
    assert "technique draft" in second.cannot_apply


def test_a_trained_draft_tells_its_survival_weight_and_room(tmp_path):
    manifest = {
        "kind": "feature",
        "target_name": "M",
        "acceptance": [0.4, 0.2],
        "held_out": 77,
        "schema": 1,
        "more": {},
    }
    (tmp_path / "draft.json").write_text(json.dumps(manifest))
    header = json.dumps(
        {
            "fuse.weight": {"dtype": "BF16", "shape": [64, 192], "data_offsets": [0, 0]},
            "layer.self_attn.k_proj.weight": {"dtype": "BF16", "shape": [16, 64], "data_offsets": [0, 0]},
            "layer.self_attn.v_proj.weight": {"dtype": "BF16", "shape": [16, 64], "data_offsets": [0, 0]},
        }
    ).encode()
    (tmp_path / "draft.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(1000))
    found = read_drafter(str(tmp_path))
    assert (found.kind, found.survival, found.one_pass) == ("feature", (0.4, 0.2), False)
    assert "77 held-out places of M" in found.origin
    assert found.token_bytes == 2 * (192 + 16 + 16)
    size = (tmp_path / "draft.safetensors").stat().st_size
    assert found.weight_bytes == size
    assert found.on(10 * size).pass_cost == pytest.approx(0.1)
    assert found.on(None).pass_cost is None
    given = read_drafter(str(tmp_path), (0.9,), 0.2)
    assert (given.survival, given.pass_cost) == ((0.9,), 0.2)
    assert given.on(10).pass_cost == 0.2


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"model_type": "medusa"}, "hf-medusa"),
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"architectures": ["Qwen3DSparkModel"]}, "dspark"),
        ({"architectures": ["LlamaForCausalLM"]}, "model"),
    ],
)
def test_checkpoints_of_other_engines_go_by_their_configuration(tmp_path, config, kind):
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(sizes | config))
    found = read_drafter(str(tmp_path))
    assert found.kind == kind
    assert found.token_bytes == (0 if kind == "hf-medusa" else 2 * 2 * 2 * 16 * 2)
    assert found.survival is None
    assert found.one_pass == (kind in ("hf-medusa", "dflash", "dspark"))


@pytest.mark.parametrize(
    ("survival", "cost", "reason"),
    [((0.5, 0.6), None, "falls"), ((), None, "falls"), ((1.2,), None, "falls"), (None, -0.1, "decode step")],
)
def test_impossible_values_are_refused(survival, cost, reason):
    with pytest.raises(UsageError, match=reason):
        read_drafter("some/model", survival, cost)


def test_a_folder_that_is_no_draft_and_a_damaged_one_are_refused(tmp_path):
    with pytest.raises(UsageError, match="so it is no draft"):
        read_drafter(str(tmp_path))
    (tmp_path / "draft.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        read_drafter(str(tmp_path))


def setting(kind, draft="d", k=3):
    return {"k": k, "draft": draft, "kind": kind}


STARTED = {("draft", "netgain"), ("draft", "vllm"), ("draft", "llama.cpp"), ("heads", "netgain")}
KINDS = {
    "draft": dict.fromkeys(("netgain", "vllm", "sglang", "llama.cpp"), ("model", "layers")),
    "heads": {
        "netgain": ("feature", "medusa", "mtp"),
        "vllm": ("eagle", "eagle3", "hf-medusa", "dflash", "dspark", "mtp"),
        "sglang": ("eagle", "eagle3", "dflash", "dspark", "mtp"),
        "llama.cpp": ("eagle3", "mtp"),
    },
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("engine", KINDS["draft"])
def test_switches_that_started_no_engine_are_never_deployable(name, engine):
    for kind in KINDS[name][engine]:
        switch = technique(name).switch_on(engine, setting(kind, "d.gguf"))
        assert switch.verified == ((name, engine) in STARTED)
        if not switch.verified:
            assert switch.read_from
            assert "no command is given" in switch.note
    for kind in {kind for kinds in KINDS["heads"].values() for kind in kinds} - {*KINDS["heads"][engine]}:
        with pytest.raises(UsageError, match="no switch"):
            technique("heads").switch_on(engine, setting(kind))


def test_each_engine_is_told_in_its_own_words():
    vllm = technique("draft").switch_on("vllm", setting("model"))
    assert json.loads(vllm.flags[1]) == {"method": "draft_model", "model": "d", "num_speculative_tokens": 3}
    heads = technique("heads")
    assert json.loads(heads.switch_on("vllm", setting("hf-medusa")).flags[1])["method"] == "medusa"
    assert json.loads(heads.switch_on("vllm", setting("mtp")).flags[1]) == {
        "method": "mtp",
        "num_speculative_tokens": 3,
    }
    assert heads.switch_on("sglang", setting("eagle3")).flags == (
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "d"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    )
    for kind, block in (("dflash", "4"), ("dspark", "3")):  # a block of the one counts the last committed token, too
        assert json.loads(heads.switch_on("vllm", setting(kind)).flags[1])["method"] == kind
        assert heads.switch_on("sglang", setting(kind)).flags == (
            *("--speculative-algorithm", kind.upper(), "--speculative-draft-model-path", "d"),
            *(f"--speculative-{kind}-block-size", block),
        )
    netgain = heads.switch_on("netgain", setting("feature"))
    assert netgain.flags == ("--speculation", "draft", "--draft", "d", "--set", "engine.speculation.k=3")
    assert heads.switch_on("netgain", setting("mtp")).flags[:2] == ("--speculation", "mtp")
    llama = technique("draft").switch_on("llama.cpp", setting("model", "d.gguf"))
    assert llama.flags[:4] == ("--spec-type", "draft-simple", "-md", "d.gguf")
    with pytest.raises(UsageError, match="GGUF"):
        technique("draft").switch_on("llama.cpp", setting("model"))
    with pytest.raises(UsageError, match="no other engine reads"):
        heads.switch_on("vllm", setting("feature"))
