"""GGUF files: numbers as the reference library reads them; damaged files end in one clear message."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from netgain.errors import UsageError
from netgain.serving.model.checkpoint import open_checkpoint
from netgain.serving.model.gguf import GgufFile
from netgain.serving.model.gguf_types import TENSOR_TYPES, UNSUPPORTED
from netgain.serving.model.load import weight_source
from netgain.serving.model.weights import check_names
from tests.serving.model.conftest import random_blocks

KINDS = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]


def write(path: Path, kind: str = "F32", alignment: int | None = None) -> dict[str, np.ndarray[Any, Any]]:
    """A file with one matrix of `kind`, one vector and metadata of every type; returns what the tensors hold."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -300)
    writer.add_int32("i32", -5)
    writer.add_uint64("u64", 1 << 60)
    writer.add_int64("i64", -(1 << 60))
    writer.add_float32("f32", 0.5)
    writer.add_float64("f64", 1e-300)
    writer.add_bool("bool", True)
    writer.add_string("text", "한국어")
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("texts", ["a", "", "é"])
    values = np.random.default_rng(0).standard_normal((6, 512), dtype=np.float32)
    stored = gguf.GGMLQuantizationType[kind]
    matrix = random_blocks(kind, 6, 512) if kind.endswith("_K") else gguf.quants.quantize(values, stored)
    writer.add_tensor("matrix", matrix, raw_dtype=stored)
    writer.add_tensor("vector", values[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return {"matrix": gguf.quants.dequantize(matrix, stored), "vector": values[0]}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alignment", [None, 64])
def test_tensors_hold_what_the_reference_library_reads(tmp_path: Path, kind: str, alignment: int | None) -> None:
    held = write(tmp_path / "m.gguf", kind, alignment)
    file = GgufFile(tmp_path / "m.gguf")
    for name, values in held.items():
        got = file.array(name)
        assert got.dtype == np.float32
        assert np.array_equal(got, values)
    assert file.tensors["matrix"].type.name == kind
    assert not file.raw("matrix").flags.writeable


def test_metadata_of_every_type_is_read(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf")
    found = GgufFile(tmp_path / "m.gguf").metadata
    assert [found[key] for key in ("u8", "i8", "u16", "i16", "i32")] == [200, -3, 60000, -300, -5]
    assert (found["u64"], found["i64"], found["f32"], found["f64"], found["bool"]) == (
        1 << 60,
        -(1 << 60),
        0.5,
        1e-300,
        True,
    )
    assert (found["text"], found["numbers"], found["texts"]) == ("한국어", [1, 2, 3], ["a", "", "é"])


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", "Q8_0")
    whole = (tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    data = len(whole) - 512 * 4  # the last tensor; what follows it is padding
    for size in [*range(0, 1024, 7), *range(1024, data, 191)]:
        cut.write_bytes(whole[:size])
        with pytest.raises(UsageError, match=r"cut\.gguf"):
            GgufFile(cut)


def test_every_type_of_the_format_is_supported_or_known_by_name() -> None:
    known = {**{number: entry.name for number, entry in TENSOR_TYPES.items()}, **UNSUPPORTED}
    assert {kind.value: kind.name for kind in gguf.GGMLQuantizationType}.items() <= known.items()
    for number, entry in TENSOR_TYPES.items():
        assert gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(number)] == (entry.block, entry.block_bytes)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(st.tuples(st.integers(0, 1100), st.integers(0, 255)), min_size=1, max_size=6))
def test_garbage_in_the_header_never_ends_in_another_error(tmp_path: Path, changes: list[tuple[int, int]]) -> None:
    if not (tmp_path / "m.gguf").exists():
        write(tmp_path / "m.gguf", "Q4_1")
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    for at, value in changes:
        content[at % len(content)] = value
    (tmp_path / "broken.gguf").write_bytes(content)
    try:
        file = GgufFile(tmp_path / "broken.gguf")
        for name in file.tensors:
            file.array(name)
    except UsageError:
        pass


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + b"\0" * 60, "not a GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "byte order"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 62, 0), "announced"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1 << 62), "announced"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1 << 61) + b"\0" * 20, "announced"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 4, 1 << 61) + b"\0" * 20, "announced"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQ", 3, 0, 1, 1, b"a", 9, 8, 1 << 61) + b"\0" * 20, "announced"),
        (b"GGUF" + struct.pack("<IQQQ1sI", 3, 0, 1, 1, b"a", 99) + b"\0" * 20, "type 99"),
        (b"GGUF" + struct.pack("<IQQQ1sIIQIQIQ", 3, 0, 1, 1, b"a", 9, 9, 1, 9, 1, 9, 1) + b"\0" * 20, "type 9"),
    ],
    ids=str,
)
def test_announced_lengths_beyond_the_file_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        GgufFile(tmp_path / "m.gguf")


def test_a_tensor_type_that_is_not_supported_is_refused_by_its_tensor(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("blk.0.odd", np.zeros((1, 84), np.uint8), raw_dtype=gguf.GGMLQuantizationType.Q2_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(
        UsageError, match=r"blk\.0\.odd has GGUF type Q2_K; supported: F32, F16, .*; requantise from .* Q4_0,"
    ):
        GgufFile(tmp_path / "m.gguf")


def directory(tensors: list[tuple[bytes, tuple[int, ...], int, int]], alignment: bytes = b"") -> bytes:
    """A file by hand: `tensors` are (name, shape innermost first, type, offset); then 64 bytes of data."""
    entries = b"".join(
        struct.pack(f"<Q{len(name)}sI{len(shape)}QIQ", len(name), name, len(shape), *shape, kind, offset)
        for name, shape, kind, offset in tensors
    )
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 1 if alignment else 0)
    content = head + alignment + entries
    return content + b"\0" * (-len(content) % 32 + 64)


def aligned(kind: int, value: bytes) -> bytes:
    return struct.pack("<Q17sI", 17, b"general.alignment", kind) + value


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (directory([(b"t", (1 << 60,), 0, 0)]), "tensor t ends at byte"),
        (directory([(b"t", (1 << 40, 1 << 40, 1 << 40, 1 << 40), 0, 0)]), "tensor t ends at byte"),
        (directory([(b"t", (4,), 0, 1 << 62)]), "tensor t ends at byte"),
        (directory([(b"t", (4,), 0, (1 << 64) - 32)]), "tensor t ends at byte"),
        (directory([(b"t", (4,), 0, 5)]), "tensor t"),
        (directory([(b"t", (0,), 0, 0)]), "empty dimension"),
        (directory([(b"t", (), 0, 0)]), "0 dimensions"),
        (directory([(b"t", (1,) * 9, 0, 0)]), "9 dimensions"),
        (directory([(b"t", (33,), 8, 0)]), "rows of 33 do not divide into Q8_0 blocks"),
        (directory([(b"t", (4,), 0, 0), (b"t", (4,), 0, 0)]), "tensor t appears twice"),
        (directory([(b"\xff", (4,), 0, 0)]), "not valid UTF-8"),
        (directory([(b"t", (4,), 4242, 0)]), "GGUF type 4242"),
        (directory([(b"t", (4,), 0, 0)], aligned(4, struct.pack("<I", 0))), "alignment 0 is not a power of two"),
        (directory([(b"t", (4,), 0, 0)], aligned(4, struct.pack("<I", 48))), "alignment 48"),
        (directory([(b"t", (4,), 0, 0)], aligned(10, struct.pack("<Q", 1 << 62))), "alignment 4611686018427387904"),
        (directory([(b"t", (4,), 0, 0)], aligned(6, struct.pack("<f", 32.0))), "alignment 32.0"),
        (directory([(b"t", (4,), 0, 0)], aligned(8, struct.pack("<Q2s", 2, b"32"))), "alignment '32'"),
    ],
    ids=str,
)
def test_a_directory_that_cannot_be_is_refused_before_memory_is_taken(
    tmp_path: Path, content: bytes, message: str
) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match=message):
            GgufFile(tmp_path / "m.gguf")
        assert tracemalloc.get_traced_memory()[1] < 1e6
    finally:
        tracemalloc.stop()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.gguf"):
        GgufFile(tmp_path / "none.gguf")


def test_a_whole_model_cut_short_is_refused(tiny: Callable[..., Any], write_gguf: Callable[..., Path]) -> None:
    path = write_gguf(tiny().reference)
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(UsageError, match="cut short, fetch it again"):
        open_checkpoint(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_model_file_of_any_content_is_opened_or_refused(
    tiny: Callable[..., Any], write_gguf: Callable[..., Path], tmp_path: Path, data: st.DataObject
) -> None:
    """Bytes of metadata, tokenizer and directory changed at random: never another error than ours."""
    path = tmp_path / "whole.gguf"
    if not path.exists():
        write_gguf(tiny(num_hidden_layers=1).reference).rename(path)
    content = bytearray(path.read_bytes())
    header = min(tensor.offset for tensor in GgufFile(path).tensors.values())
    # half of the changes near the directory and the numbers, the rest anywhere among tokens
    for at in data.draw(st.lists(st.integers(0, header - 1) | st.integers(0, 900), min_size=1, max_size=4)):
        content[at] = data.draw(st.integers(0, 255))
    (tmp_path / "broken.gguf").write_bytes(content)
    try:
        checkpoint = open_checkpoint(tmp_path / "broken.gguf")
        check_names(weight_source(checkpoint), checkpoint.config)
    except UsageError as refusal:
        said = str(refusal)
    else:
        said = ""
    assert "\n" not in said
