"""What the tests of server and fleet share: a model whose every answer is known beforehand."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

IM_START, IM_END = 256, 257
MAX_LENGTH = 4096

# Which character at the end of a prompt leads to which tokens. None ends the answer; a chain without it goes round.
CHAINS: dict[str, Sequence[str | bytes | None]] = {
    # "one green lamp burns", cut at every place inside "een la"
    **{
        start: ("one green lamp burns"[:cut], "one green lamp burns"[cut:], None)
        for start, cut in zip("abcde", range(7, 12), strict=True)
    },
    "n": ("one gr", "een l", "eft over", None),
    "u": (*(bytes([byte]) for byte in "ď가龜🫠".encode()), None),
    "v": (b"\xed", b"\x95", " then", " text", None),
    "l": ("la ", "lo ", "lu "),
    "s": ("short ", "answer", None),
    "t": (
        "let me see ",
        "<tool_call>",
        '\n{"name": "weather", "argu',
        'ments": {"city": "Rome"}}\n</tool_',
        "call>",
        None,
    ),
    "p": (
        '<tool_call>{"name": "weather", "arguments": {"city": "Oslo"}}</tool_call>',
        '\n<tool_call>{"name": "clock", "arguments": {}}</tool_call>',
        None,
    ),
    "r": ("<think>\nhm", " well", "\n</think>\n\n", "the answer", " is 5", None),
}


@dataclass(frozen=True)
class ChainModel:
    """A Hugging Face folder. `spelled` maps every token that a chain uses to its id."""

    folder: Path
    spelled: dict[str | bytes, int]


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> ChainModel:
    """A Llama whose next token depends on the last one alone, as CHAINS says; its context is MAX_LENGTH tokens."""
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("models") / "chain"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    letter_of = _letters()
    vocab = {letter: number for number, letter in enumerate(alphabet)}
    spelled: dict[str | bytes, int] = {bytes([byte]): vocab[letter] for byte, letter in letter_of.items()}
    texts = dict.fromkeys(piece for chain in CHAINS.values() for piece in chain if isinstance(piece, str))
    for number, text in enumerate(texts, start=IM_END + 1):
        spelled[text] = number
        vocab["".join(letter_of[byte] for byte in text.encode())] = number
    tokenizer = Tokenizer(models.BPE(vocab={k: v for k, v in vocab.items() if v < IM_START}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    spec = json.loads(tokenizer.to_str())
    spec["model"]["vocab"] = vocab | {"<|im_start|>": IM_START, "<|im_end|>": IM_END}
    (folder / "tokenizer.json").write_text(json.dumps(spec))

    size = 384
    following = torch.zeros(size, size)
    for start, chain in CHAINS.items():
        ids = [spelled[start.encode()], *(IM_END if piece is None else spelled[piece] for piece in chain)]
        if chain[-1] is not None:
            ids.append(ids[1])
        for token, successor in pairwise(ids):
            following[successor, token] = 1.0
    zeros, ones = torch.zeros(size, size), torch.ones(size)
    layer = "model.layers.0."
    save_file(
        {
            "model.embed_tokens.weight": torch.eye(size),
            "model.norm.weight": ones,
            "lm_head.weight": following,
            f"{layer}input_layernorm.weight": ones.clone(),
            f"{layer}post_attention_layernorm.weight": ones.clone(),
            **{f"{layer}self_attn.{name}_proj.weight": zeros.clone() for name in "qkvo"},
            **{f"{layer}mlp.{name}_proj.weight": zeros.clone() for name in ("gate", "up", "down")},
        },
        folder / "model.safetensors",
    )
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": size,
        "hidden_size": size,
        "intermediate_size": size,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": MAX_LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": IM_START,
        "eos_token_id": IM_END,
    }
    (folder / "config.json").write_text(json.dumps(config))
    template = (
        "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
        "{{ raise_exception('the system turn comes first') }}{% endif %}{{ message['content'] }}{% endfor %}"
    )
    settings = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ChainModel(folder, spelled)


def _letters() -> dict[int, str]:
    """How byte-level vocabularies spell each byte."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {byte: chr(byte) for byte in shown} | {byte: chr(0x100 + at) for at, byte in enumerate(hidden)}
