"""Two real servers over tiny random models: one, and one whose weights were disturbed and whose KV is rounded."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

VOCAB = 320


@dataclass(frozen=True)
class Served:
    """A running server, the folder of its model, and its settings as the engine takes them."""

    url: str
    folder: Path
    kv_dtype: str


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    pytest.importorskip("torch")
    with two_servers(tmp_path_factory.mktemp("quality")) as started:
        yield started


@contextmanager
def two_servers(base: Path) -> Iterator[tuple[Served, Served]]:
    """The plain one and the disturbed one, until the block ends."""
    from netgain.deciding.experiment.arms.netgain import launched_netgain

    started: list[tuple[Any, Served]] = []
    for name, noise, kv in (("plain", 0.0, "fp32"), ("disturbed", 0.03, "int8")):
        folder = write_model(base / name, noise)
        flags = [str(folder), *settings(kv)]
        arm = launched_netgain(name, flags, base / f"{name}.log")
        started.append((arm, Served("", folder, kv)))
    asyncio.run(_start([arm for arm, _ in started]))
    try:
        first, second = (Served(arm.url, one.folder, one.kv_dtype) for arm, one in started)
        yield first, second
    finally:
        asyncio.run(_stop([arm for arm, _ in started]))


async def _start(arms: list[Any]) -> None:
    for arm in arms:
        await arm.start()
    for arm in arms:
        await arm.ready(120.0)


async def _stop(arms: list[Any]) -> None:
    for arm in arms:
        await arm.stop()


def settings(kv_dtype: str) -> list[str]:
    given = ("kernels=torch", "threads=1", "dtype=fp32", f"kv_dtype={kv_dtype}")
    flags = [part for one in given for part in ("--set", f"engine.model.{one}")]
    return [*flags, "--set", "engine.step_cost.refresh=never"]


def write_model(folder: Path, noise: float) -> Path:
    """A random Llama of two layers with a token per byte. The same but for `noise`, relative to each weight's spread."""
    import torch
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder.mkdir()
    generator = torch.Generator().manual_seed(3)
    disturbing = torch.Generator().manual_seed(4)

    def weight(*shape: int, scale: float = 0.15) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator) * scale
        return drawn + torch.randn(shape, generator=disturbing) * scale * noise

    tensors = {
        "model.embed_tokens.weight": weight(VOCAB, 64, scale=1.0),
        "model.norm.weight": torch.ones(64),
        "lm_head.weight": weight(VOCAB, 64, scale=0.4),
    }
    for number in range(2):
        layer = f"model.layers.{number}."
        tensors |= {
            f"{layer}input_layernorm.weight": torch.ones(64),
            f"{layer}post_attention_layernorm.weight": torch.ones(64),
            f"{layer}self_attn.q_proj.weight": weight(64, 64),
            f"{layer}self_attn.k_proj.weight": weight(32, 64),
            f"{layer}self_attn.v_proj.weight": weight(32, 64),
            f"{layer}self_attn.o_proj.weight": weight(64, 64),
            f"{layer}mlp.gate_proj.weight": weight(96, 64),
            f"{layer}mlp.up_proj.weight": weight(96, 64),
            f"{layer}mlp.down_proj.weight": weight(64, 96),
        }
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 256,
        "eos_token_id": 257,
    }
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|s|>", special=True), AddedToken("<|e|>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|s|>", "eos_token": "<|e|>", "chat_template": template})
    )
    return folder
