"""The embedded default model end to end: the same tokens as transformers makes from the converted folder."""

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from netgain.serving.model.cache import PagedKV
from netgain.serving.model.checkpoint import Checkpoint
from netgain.serving.model.kernels.select import load_kernels
from netgain.serving.model.load import LoadedModel, load_model

BLOCK_TOKENS = 16


def greedy(loaded: LoadedModel, prompt: list[int], count: int, kv_dtype: torch.dtype) -> list[int]:
    blocks = -(-(len(prompt) + count) // BLOCK_TOKENS)
    kv = PagedKV(loaded.config, blocks, BLOCK_TOKENS, kv_dtype)
    table = torch.arange(blocks, dtype=torch.int32)[None]
    tokens, start = list(prompt), 0
    while len(tokens) < len(prompt) + count:
        new = tokens[start:]
        positions = torch.arange(start, len(tokens))
        plan = loaded.model.kernels.plan(positions, torch.zeros(len(new), dtype=torch.int64), table, BLOCK_TOKENS)
        logits = loaded.model.forward(torch.tensor(new), positions, plan, kv, torch.tensor([len(new) - 1]))
        start = len(tokens)
        tokens.append(int(logits[0].argmax()))
    return tokens[len(prompt) :]


def test_sixty_four_greedy_tokens_equal_those_of_transformers(
    default_checkpoint: Checkpoint, default_model: Path, default_folder: Path
) -> None:
    assert default_checkpoint.template is not None
    question = [{"role": "user", "content": "Explain in detail why the sky is blue, and give 3 numbers."}]
    prompt = default_checkpoint.template.encode(default_checkpoint.tokenizer, question)
    loaded = load_model(default_model, "fp32", load_kernels("auto", 2))
    tokens = greedy(loaded, prompt, 64, torch.float32)
    reference = AutoModelForCausalLM.from_pretrained(default_folder, dtype=torch.float32)
    with torch.inference_mode():  # if every choice on the path is theirs, the path is theirs: one pass shows it
        choices = reference(torch.tensor([prompt + tokens])).logits[0].argmax(-1).tolist()
    assert tokens == choices[len(prompt) - 1 : -1]


def test_blocks_as_stored_answer_sensibly(default_model: Path) -> None:
    loaded = load_model(default_model, "auto", load_kernels("auto", 2))
    assert loaded.name == "SmolLM2-135M-Instruct"
    assert loaded.eos == (2,)
    assert loaded.computed == ("Q4_1", "Q8_0")
    assert loaded.model.weight_bytes < 170e6
    prompt = loaded.tokenizer.encode("The capital of France is")
    assert loaded.tokenizer.decode(greedy(loaded, prompt, 1, torch.bfloat16)) == " Paris"
