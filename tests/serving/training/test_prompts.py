"""Which prompts a draft learns from: the bundled set, and the forms that a user's file may have."""

import json

import pytest

from netgain.errors import UsageError
from netgain.measuring.workload.load import bundled_names, load_workload
from netgain.serving.training.prompts import Prompt, bundled_prompts, digest, read_prompts, split


def said(prompt: Prompt) -> str:
    return prompt.text if prompt.text is not None else prompt.messages[-1]["content"]


def test_no_bundled_workload_holds_a_prompt_of_the_training_set():
    training = {said(prompt) for prompt in bundled_prompts()}
    for name in bundled_names():
        for item in load_workload(name).items:
            texts = {item.prompt} if item.prompt is not None else {message.content for message in item.messages}
            assert not training & texts


def test_the_bundled_set_is_always_the_same_and_a_part_is_held_out():
    prompts = bundled_prompts()
    assert digest(prompts) == digest(bundled_prompts())
    assert len({prompt.digest for prompt in prompts}) == len(prompts) > 600
    held = sum(prompt.held_out for prompt in prompts)
    assert 0.05 < held / len(prompts) < 0.12


@pytest.mark.parametrize("held_out", [True, False])
def test_either_side_has_a_prompt_unless_there_is_but_one(held_out):
    prompts = [prompt for prompt in (Prompt(text=f"text {n}") for n in range(60)) if prompt.held_out is held_out]
    for count in range(1, 4):
        taught, held = split(prompts[:count])
        assert sorted([*map(said, taught), *map(said, held)]) == sorted(map(said, prompts[:count]))
        assert taught
        assert bool(held) == (count > 1)


def test_jsonl_of_workloads_logs_and_spec_bench_is_read(tmp_path):
    lines = [
        {"define": "rules", "messages": [{"role": "system", "content": "Be brief."}]},
        {"id": "a", "category": "c", "context": "rules", "messages": [{"role": "user", "content": "one"}]},
        {"prompt": "Once upon"},
        {"question_id": 81, "turns": ["first", "second"]},
        {"turns": ["first"]},
    ]
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    read = read_prompts(path)
    assert [said(prompt) for prompt in read] == ["one", "Once upon", "first"]
    assert [message["role"] for message in read[0].messages] == ["system", "user"]


def test_a_text_has_a_prompt_in_every_line(tmp_path):
    path = tmp_path / "mine.txt"
    path.write_text("Why?\n\n  How so?\nWhy?\n")
    assert [said(prompt) for prompt in read_prompts(path)] == ["Why?", "How so?"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl", '{"prompt": "x"}\n{"prompt": 3}\n', "line 2"),
        ("a.jsonl", '{"question": "x"}\n', "line 1: holds nothing to answer"),
        ("a.jsonl", '{"context": "no", "messages": [{"role": "user", "content": "x"}]}\n', "'no' is not defined"),
        ("a.txt", "\n \n", "holds no prompts"),
        ("a.txt", b"\xff\xfe\x00", "cannot be read"),
    ],
)
def test_files_that_cannot_be_used_are_refused_with_the_line(tmp_path, name, content, why):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError, match=why):
        read_prompts(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(UsageError, match=r"nowhere\.txt cannot be read: No such file"):
        read_prompts(tmp_path / "nowhere.txt")
