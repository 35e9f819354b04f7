"""Peers are given what netgain is given, and their one knob is tried before it is called tuned."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from benchmarks.peers import install, machine, programs, tuning
from netgain.errors import Unavailable


def after(words, flag):
    return words[words.index(flag) + 1]


def test_llama_cpps_slots_together_hold_as_many_tokens_as_netgains_cache(tmp_path):
    peer = programs.llama("Q8_0", "int8", tmp_path, 256)
    words = peer.server.command
    own = programs.netgain("own", "default", "auto", "int4", tmp_path).server.command
    assert f"engine.cache.kv_tokens={after(words, '-c')}" in own
    assert int(after(words, "-c")) == int(after(words, "-np")) * 1456
    assert after(words, "-ub") == "256"


def test_llama_cpps_long_prompts_are_served_by_a_second_process_with_the_same_ubatch(tmp_path):
    peer = programs.llama("Q8_0", "int8", tmp_path, 1024)
    words = peer.long.command
    assert peer.long.name != peer.server.name
    assert (after(words, "-np"), after(words, "-c"), after(words, "-ub")) == ("1", str(programs.MAX_MODEL_LEN), "1024")


def test_openvino_is_told_to_keep_kv_in_16_bit(tmp_path):
    assert programs.openvino("int8", tmp_path).server.command[-1] == "f16"


def test_the_ubatch_that_reads_prompts_fastest_over_all_lengths_is_kept(tmp_path):
    rates = {128: [[100.0], [90.0]], 512: [[120.0, 10.0, 130.0], [80.0]], 1024: [[121.0], [50.0]]}
    assert tuning.keep("Q8_0", rates, tmp_path) == 512
    found = tuning.tuned("Q8_0", tmp_path)
    assert found.ubatch == 512
    assert found.prefill_tokens_per_s["512"] == [120.0, 80.0]


def test_of_equal_ubatches_the_smaller_is_kept_which_takes_less_memory():
    assert tuning.best({512: [[100.0]], 256: [[100.0]]}) == 256


def test_untried_or_unreadable_it_is_llama_cpps_default_and_says_that_none_was_tried(tmp_path):
    assert tuning.tuned("Q8_0", tmp_path) == tuning.Tuned(512, {})
    (tmp_path / "Q8_0.ubatch.json").write_text("{")
    assert tuning.tuned("Q8_0", tmp_path) == tuning.Tuned(512, {})


@contextmanager
def telling(about):
    class Models(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"data": [{"netgain": about}]}).encode())

        def log_message(self, *said):
            pass

    server = HTTPServer(("127.0.0.1", 0), Models)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_run_without_a_compiler_says_that_its_kernels_are_the_reference():
    with telling({"kernels": "torch-2.13.0-cpu-v3", "kernels_note": "torch kernels, because there is no C++"}) as url:
        assert machine.kernels(url) == "torch-2.13.0-cpu-v3 (torch kernels, because there is no C++)"
    with telling({"kernels": "cpu-abc", "kernels_note": None}) as url:
        assert machine.kernels(url) == "cpu-abc"


def test_tools_that_building_llama_cpp_takes_are_looked_for_before_anything_is_fetched(tmp_path):
    assert "cmake" in install.missing_tools(str(tmp_path))
    for name in ("cmake", "c++"):
        (tmp_path / name).touch(0o755)
    assert install.missing_tools(str(tmp_path)) == ()


def test_llama_cpps_tiles_are_written_before_they_are_loaded(tmp_path):
    source = tmp_path / "mmq.cpp"
    source.write_text("    tc.rows[7] = 16;\n    _tile_loadconfig(&tc);\n    done = true;\n")
    for _ in range(2):
        install.write_tiles_first(source)
        lines = source.read_text().splitlines()
        assert [line.split("(")[0].strip() for line in lines][1:3] == ["__asm__ volatile", "_tile_loadconfig"]
        assert len(lines) == 4
    source.write_text("_tile_release();\n")
    with pytest.raises(Unavailable, match="another place"):
        install.write_tiles_first(source)
