"""Which ratio a calibration chooses, and for whom it is kept."""

import math

import msgspec

from netgain.cost import kept
from netgain.serving.blocks.keys import Namespace
from netgain.serving.tiers.blending.calibration import (
    Calibration,
    Gate,
    Point,
    calibration_file,
    read_calibration,
)

SPACE = Namespace(weights="w", tokenizer="t", rope="r", kv_dtype="bfloat16", numerics="n")


def point(ratio, kl, lost=None):
    worse = None if lost is None else (lost, lost - 0.02, lost + 0.02)
    return Point(
        ratio=ratio,
        recomputed=ratio or 0.0,
        kl=(kl, kl / 2, kl * 1.5),
        same_top=0.9,
        score=0.5,
        score_lost=worse,
        ttft_ratio=0.5,
    )


def calibration(*points, **fields):
    values = {
        "measured_at": 0.0,
        "prompts": 20,
        "chunks": 6,
        "prompt_tokens": 400,
        "chance": 0.2,
        "whole_score": (0.8, 0.6, 0.9),
        "gate": Gate(kl=0.06, score=0.1),
        "points": points,
        "text": "one fact",
    }
    return Calibration(**(values | fields))


def test_the_smallest_ratio_that_passes_by_the_worse_ends_is_chosen():
    points = (
        point(0.0, 0.5, 0.3),
        point(0.1, 0.05, 0.0),
        point(0.2, 0.03, 0.09),
        point(0.3, 0.02, 0.07),
        point(0.5, 0.01, 0.0),
    )
    assert calibration(*points).ratio == 0.3


def test_where_nothing_passes_all_is_computed():
    assert calibration(point(0.0, 0.5), point(0.7, 0.2)).ratio == 1.0
    assert calibration().ratio == 1.0
    assert calibration(point(0.2, math.nan)).ratio == 1.0


def test_a_baseline_by_first_tokens_is_never_chosen_as_a_ratio():
    assert calibration(point(None, 0.0, 0.0), point(0.4, 0.01, 0.0)).ratio == 0.4


def test_a_model_not_above_chance_is_not_judged_by_its_answers():
    assert calibration().judged
    assert not calibration(whole_score=(0.3, 0.15, 0.5)).judged


def test_it_is_kept_for_its_model_alone(tmp_path):
    found = calibration(point(0.2, 0.01, 0.0))
    kept.write(calibration_file(tmp_path, SPACE), found)
    assert read_calibration(tmp_path, SPACE) == found
    for field in SPACE.__struct_fields__:
        assert read_calibration(tmp_path, msgspec.structs.replace(SPACE, **{field: "other"})) is None
