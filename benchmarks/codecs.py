"""What each KV codec saves on the default model's own KV, how quick it is, and what continuing from decoded KV loses.

python -m benchmarks.codecs [--json FILE] [--again]. `codec_{name}_ratio`: raw over coded bytes of stored objects, headers and
tables counted; `_encode_gbps` and `_decode_gbps`: 10^9 bytes of raw KV per second on one core; `_kl`: nats per position against
the model's own KV (0 where every bit came back), `_perplexity`: ratio to it; `_gate`: what the quality gate says. Without
--again, what `netgain cache codecs` measured here before is taken.
"""

from collections.abc import Callable, Iterable

from benchmarks import _report
from netgain.cli.cache_codecs import gate_texts
from netgain.folders import cache_folder
from netgain.measuring.quality.paired_scores import tango_interval
from netgain.serving.runtime.codec_gate.run import measured
from netgain.serving.runtime.codec_gate.verdict import Row
from netgain.serving.tiers.codecs.names import NAMES


def main() -> None:
    parser = _report.arguments(__doc__)
    parser.add_argument("--again", action="store_true", help="measure anew what was measured before")
    options = parser.parse_args()
    _report.write(options.json, measure(again=options.again), title="KV codecs")


def measure(
    told: Callable[[str, float], None] = lambda what, done: None, again: bool = False
) -> dict[str, _report.Figure]:
    """The figures of all codecs; `told` what is being measured, and the share that is done."""
    report = measured(
        "default", NAMES, gate_texts("bundled"), cache_folder(), told, again=again, interval=tango_interval
    )
    return figures(report.rows)


def figures(rows: Iterable[Row]) -> dict[str, _report.Figure]:
    found: dict[str, _report.Figure] = {}
    for row in rows:
        found |= {
            key(row.name, "ratio"): row.ratio,
            key(row.name, "encode_gbps"): row.encode_bytes_per_s / 1e9,
            key(row.name, "decode_gbps"): row.decode_bytes_per_s / 1e9,
            key(row.name, "kl"): row.loss.kl.value if row.loss else 0.0,
            key(row.name, "perplexity"): row.loss.perplexity_ratio.value if row.loss else 1.0,
            key(row.name, "gate"): row.state,
        }
    return found


def key(codec: str, figure: str) -> str:
    """The name of a figure of a codec."""
    return f"codec_{codec.replace('-', '_')}_{figure}"


if __name__ == "__main__":
    main()
