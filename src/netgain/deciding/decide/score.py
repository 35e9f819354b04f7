"""How good the prediction was: the advisor's own figures beside what was measured, each with its error."""

from netgain.deciding.experiment.analyse import Analysis
from netgain.deciding.report.outcome import Score
from netgain.deciding.technique.prediction import Prediction
from netgain.ledger.stage import Stage


def score(prediction: Prediction, analysis: Analysis, committed_per_step: float | None) -> tuple[Score, ...]:
    """Predicted against measured, for everything that was predicted."""
    fall = analysis.waterfall
    rows = [
        Score(
            figure="end-to-end speedup (median prompt)",
            unit="x",
            predicted=prediction.speedup_e2e,
            measured=analysis.e2e_median.ratio if analysis.e2e_median else None,
        ),
        Score(
            figure="end-to-end speedup (mean time)",
            unit="x",
            predicted=prediction.speedup_mean,
            measured=analysis.e2e_mean.ratio if analysis.e2e_mean else None,
        ),
        Score(
            figure="speedup of time per output token (median prompt)",
            unit="x",
            predicted=prediction.speedup_tpot,
            measured=analysis.tpot_median.ratio if analysis.tpot_median else None,
        ),
    ]
    if prediction.drafts is not None:
        rows.append(
            Score(
                figure="tokens committed per step",
                unit="tokens",
                predicted=prediction.committed_per_step,
                measured=committed_per_step,
            )
        )
    for stage, seconds in prediction.saved_s.items():
        if stage is not Stage.UNATTRIBUTED:
            net_s = seconds - prediction.spent_s.get(stage, 0.0)  # only both together can be measured
            rows.append(_stage(f"{stage} time saved per request", net_s, fall.saved_ns.get(stage) if fall else None, 1))
    for stage, seconds in prediction.spent_s.items():
        if (
            stage is not Stage.UNATTRIBUTED and stage not in prediction.saved_s
        ):  # what runs behind answers is no stage of theirs; it is in the net gain
            rows.append(
                _stage(f"{stage} time spent per request", seconds, fall.saved_ns.get(stage) if fall else None, -1)
            )
    rows.append(_stage("net gain per request", prediction.net_s, fall.net_ns if fall else None, 1))
    return tuple(rows)


def _stage(figure: str, predicted_s: float, saved_ns: int | None, sign: int) -> Score:
    measured = None if saved_ns is None else sign * saved_ns / 1e6
    return Score(figure=figure, unit="ms", predicted=predicted_s * 1e3, measured=measured)
