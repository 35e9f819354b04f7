"""`netgain calc` as a user types it: the answer, the formula with the numbers in it, JSON, and one line for bad input."""

import json

import pytest

from netgain.cli.main import run

HANDOFF = ["calc", "handoff", "--kv", "1.2GiB", "--rate", "8/s", "--bandwidth", "12GiB/s"]
RAG = ["--knowledge", "100K"]


def asked(capsys, *arguments):
    assert run(["calc", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["accepted", "--alpha", "0.8", "--k", "4"], ["accepted drafts per step: 2.3616 tokens", "0.8 + 0.8^2"]),
        (["accepted", "--alpha", "50%", "--k", "4"], ["0.9375 tokens"]),
        (["accepted", "--survival", "0.8,0.5", "--draft-cost", "0.1"], ["1.2 tokens", "0.8 x 0.5", "1.8333x"]),
        (
            ["accepted", "--alpha", "0.1", "--k", "3", "--draft-cost", "0.2"],
            ["the best K is 0", "K = 0 is a valid answer"],
        ),
        (
            ["rejection", "--draft", "0.8,0.2", "--target", "0.5,0.5"],
            ["accepted: 70 %", "token 1 comes out with: 50 %"],
        ),
        (HANDOFF[1:], ["KV handoff: 9.6 GiB/s", "1.2GiB x 8/s", "share of the link: 80 %", "Too little room"]),
        (["warm", "--kv", "4GiB", "--bandwidth", "16GiB/s", "--full", "180ms"], ["T_warm: 250 ms", "Recompute"]),
        (["warm", "--kv", "4GiB", "--bandwidth", "16GiB/s", "--full", "2s"], ["saved by a hit: 1.75 s", "may pay"]),
        (["hits", "--requests", "100", "--hit", "90x16"], ["prefill saved: 1,440 tokens", "90 %"]),
        (["hits", "--requests", "100", "--hit", "10x50K"], ["500,000 tokens", "10 %"]),
        (
            [
                "kv-size",
                "--layers",
                "30",
                "--kv-heads",
                "3",
                "--head-dim",
                "64",
                "--tokens",
                "8192",
                "--memory",
                "1GiB",
            ],
            ["23,040 B", "180 MiB", "46,603 tokens"],
        ),
        (
            ["rag-cag-price", *RAG, "--fresh", "1000000", "--cached", "100000"],
            ["RAG per request: 5,550", "CAG per request: 10,550", "RAG is the cheaper", "9.091 %", "5 %"],
        ),
        (
            ["rag-cag-time", *RAG, "--prefill", "10K", "--reuse", "100", "--retrieval", "50ms"],
            ["RAG per request: 600 ms", "CAG per request: 150.5 ms"],
        ),
        (
            ["dispatch", "--placement", "0,1/2,3", "--token", "0:0,2", "--token", "0:1,0", "--token", "1:3,1"],
            ["pieces sent: 2", "device 0 to device 1: 1", "device 1 to device 0: 1", "1 + 0 + 1"],
        ),
        (["balance", "--experts", "8", "--ranks", "4", "--hot-share", "70%"], ["2.9714x", "74.29 %"]),
        (
            ["experts", "--tokens", "128", "--experts", "8", "--top-k", "8", "--ranks", "4", "--hidden", "1024"],
            ["distinct ranks per token: 4", "2 MiB"],
        ),
        (["compress", "--kv", "1GiB", "--bandwidth", "1GiB/s", "--ratio", "4", "--decode", "1s"], ["1.25 s", "raw"]),
        (
            ["collective", "--ranks", "8", "--size", "1MB", "--bandwidth", "1GB/s", "--latency", "1us"],
            ["1.764 ms", "14 x 1us + 1.75 x 1MB"],
        ),
        (["bubble", "--stages", "4", "--micro-batches", "13"], ["bubble: 18.75 %"]),
    ],
)
def test_an_answer_shows_figure_formula_and_numbers(capsys, arguments, told):
    shown = asked(capsys, *arguments)
    for part in (*told, "source: "):
        assert part in shown
    found = json.loads(asked(capsys, *arguments, "--json"))
    assert shown.startswith(f"{found['answer']['name']}: {found['answer']['text']}\n")
    assert found["lines"][0]["formula"] in shown
    assert found["source"]


def test_what_never_happens_is_null_with_its_words(capsys):
    arguments = ["warm", "--kv", "4GiB", "--bandwidth", "16GiB/s", "--full", "10ms", "--lookup", "20ms"]
    last = json.loads(asked(capsys, *arguments, "--json"))["lines"][-1]
    assert last["value"] is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["handoff", "--kv", "1.2", "--rate", "8/s", "--bandwidth", "12GiB/s"], "'1.2' has no unit"),
        (["handoff", "--kv", "1.2Gb", "--rate", "8/s", "--bandwidth", "12GiB/s"], "write Gbit or GB"),
        (["accepted"], "give either --alpha and --k, or --survival"),
        (["accepted", "--alpha", "0.8", "--k", "4", "--survival", "0.5"], "give either"),
        (["accepted", "--alpha", "2", "--k", "4"], "more than everything"),
        (["hits", "--requests", "10", "--hit", "90x16"], "at least as many requests as hits"),
        (["hits", "--requests", "10", "--hit", "16"], "write it as REQUESTSxTOKENS"),
        (["kv-size", "--layers", "1", "--kv-heads", "3", "--head-dim", "64", "--ranks", "2"], "cannot be shared out"),
        (
            ["kv-size", "--layers", "1", "--kv-heads", "3", "--head-dim", "64", "--dtype", "x"],
            "the dtype 'x' is unknown",
        ),
        (["dispatch", "--placement", "0,a", "--token", "0:0"], "no numbers"),
        (["dispatch", "--placement", "0/1", "--token", "0"], "DEVICE:EXPERT"),
        (["dispatch", "--placement", "0/1", "--token", "5:0"], "device 5"),
        (
            ["collective", "--ranks", "2", "--size", "1B", "--bandwidth", "1B/s", "--kind", "gossip"],
            "'gossip' is unknown",
        ),
        (
            ["kv-size", "--layers", "1", "--kv-heads", "1", "--head-dim", "1", "--memory", "1e300GiB"],
            "that can be meant",
        ),
        (["handoff", "--kv", "1e308TiB", "--rate", "8/s", "--bandwidth", "12GiB/s"], "that can be meant"),
        (["rag-cag-time", *RAG, "--prefill", "10K", "--reuse", "9", "--kv", "1GiB"], "--kv and --bandwidth"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(capsys, arguments, said):
    assert run(["calc", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_the_commands_are_listed(capsys):
    assert run(["calc"]) in (0, 2)
    shown = capsys.readouterr()
    for name in ("accepted", "kv-size", "handoff", "warm", "rag-cag-price", "experts"):
        assert name in shown.out + shown.err
