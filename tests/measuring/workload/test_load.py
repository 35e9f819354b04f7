"""Workloads load from a name or a file; what is wrong is said with the line."""

from pathlib import Path

import pytest

from netgain.errors import UsageError
from netgain.measuring.workload.item import Item, Message, Workload
from netgain.measuring.workload.load import bundled_names, load_workload, parse_workload

GOOD = b'{"id": "a", "category": "c", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}'


@pytest.mark.parametrize("name", ["chat", "edit", "shared-prefix", "documents"])
def test_bundled_workloads_are_complete(name: str) -> None:
    workload = load_workload(name)
    assert name in bundled_names()
    assert len(workload.items) >= 36
    assert len(workload.categories) >= 5
    contents = [item.messages for item in workload.items]
    assert len(set(contents)) == len(contents)


def test_edit_asks_for_text_that_fits_its_limit() -> None:
    for item in load_workload("edit").items:
        _, body = item.messages[0].content.split("\n\n", 1)
        assert len(body) / 4.5 < item.max_tokens < len(body)
        assert 200 < len(item.messages[0].content) < 1000


def test_shared_prefix_shares_long_beginnings() -> None:
    groups: dict[str | None, set[Message]] = {}
    for item in load_workload("shared-prefix").items:
        assert item.context == item.category
        groups.setdefault(item.context, set()).add(item.messages[0])
        assert len(item.messages[0].content) > 2400
    assert len(groups) >= 4
    assert all(len(first) == 1 for first in groups.values())


def test_a_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(GOOD + b"\n\n")
    for source in (path, str(path)):
        assert load_workload(source) == Workload(
            name="mine", items=(Item(id="a", category="c", max_tokens=8, messages=(Message("user", "hi"),)),)
        )


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'edits'.*did you mean 'edit'.*chat, documents, edit, shared-prefix"):
        load_workload("edits")
    with pytest.raises(UsageError, match="no workload 'zzzzzz': Bundled"):
        load_workload("zzzzzz")


@pytest.mark.parametrize("source", ["x" * 300, "~no-such-user/prompts.jsonl", "a\0b.jsonl"])
def test_a_name_that_can_be_no_file_is_refused(source: str) -> None:
    with pytest.raises(UsageError, match="workload"):
        load_workload(source)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl cannot be read: No such file"):
        load_workload(tmp_path / "nowhere.jsonl")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "has no items"),
        (GOOD + b"\n" + GOOD, "'a' occurs twice"),
        (GOOD + b"\nnonsense", "line 2: .*JSON object like"),
        (GOOD.replace(b"max_tokens", b"max_token"), "line 1: .*max_token"),
        (GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 0'), "line 1: max_tokens is 0"),
        (GOOD.replace(b'"user"', b'"robot"'), "line 1: .*robot"),
        (GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 8, "prompt": "x"'), "either messages or prompt"),
        (GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 8, "temperature": 3'), "temperature is 3"),
        (GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 8, "context": "d"'), "context 'd' is not defined above"),
        (
            GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 8, "seed": 9223372036854775808'),
            "seed is 9223372036854775808",
        ),
        (GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 8, "stop": [""]'), "stop"),
        (
            GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 9223372036854775808'),
            "line 1: max_tokens is 9223372036854775808",
        ),
        (GOOD.replace(b'"max_tokens": 8', b'"max_tokens": 8, "top_k": 9223372036854775808'), "top_k is"),
        (b'{"define": ' + b"[" * 5000, "line 1"),
        (b"\xff\xfe{}", "line 1"),
    ],
)
def test_a_faulty_line_is_named(data: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_workload("w", data)


def test_a_context_is_put_in_front() -> None:
    define = b'{"define": "d", "messages": [{"role": "system", "content": "long"}]}'
    item = parse_workload("w", define + b"\n" + GOOD.replace(b'"c"', b'"c", "context": "d"')).items[0]
    assert [message.content for message in item.messages] == ["long", "hi"]
    assert item.context == "d"


def test_a_subset_is_deterministic_nested_and_spread() -> None:
    workload = load_workload("edit")
    nine = workload.subset(9)
    assert nine == workload.subset(9)
    assert len(nine.categories) == 9
    assert {item.id for item in nine.items} < {item.id for item in workload.subset(20).items}
    assert workload.subset(1000) is workload
    order = [item.id for item in workload.items]
    assert [order.index(item.id) for item in nine.items] == sorted(order.index(item.id) for item in nine.items)
    with pytest.raises(UsageError, match="at least 1"):
        workload.subset(0)


def test_categories_of_unequal_size_take_turns() -> None:
    items = tuple(
        Item(id=f"{c}{n}", category=c, max_tokens=1, prompt="x") for c in "ab" for n in range(5 if c == "a" else 1)
    )
    assert [item.id for item in Workload(name="w", items=items).subset(4).items] == ["a0", "a1", "a2", "b0"]


def test_the_digest_tells_workloads_apart() -> None:
    assert load_workload("edit").digest == load_workload("edit").digest
    assert load_workload("edit").digest != load_workload("edit").subset(5).digest


DOCUMENTS = b'{"define": "a", "document": "Ann keeps bees."}\n{"define": "b", "document": "Ben mends clocks."}\n'


def with_documents(line: bytes) -> Workload:
    return parse_workload("w", DOCUMENTS + line)


def test_documents_stand_in_the_text_in_their_order_and_are_chunks_of_it() -> None:
    (item,) = with_documents(
        b'{"id": "1", "category": "c", "max_tokens": 4, "documents": ["b", "a"], "prompt": "Read: {documents} Who?"}'
    ).items
    assert item.prompt == "Read: Ben mends clocks.\n\nAnn keeps bees. Who?"
    assert item.chunks == ("Ben mends clocks.", "Ann keeps bees.")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (b'"documents": ["c"], "prompt": "{documents}"', "document 'c' is not defined"),
        (b'"documents": ["a"], "prompt": "Who?"', "{documents} 0 times"),
        (b'"documents": ["a"], "prompt": "{documents} {documents}"', "{documents} 2 times"),
        (b'"chunks": ["Zoe"], "prompt": "Who?"', "does not stand in the prompt"),
        (b'"chunks": [""], "prompt": "Who?"', "empty text"),
        (b'"answers": [""], "prompt": "Who?"', "empty text"),
    ],
)
def test_what_is_wrong_with_pieces_is_said_with_the_line(fields: bytes, said: str) -> None:
    with pytest.raises(UsageError, match="line 3") as refusal:
        with_documents(b'{"id": "1", "category": "c", "max_tokens": 4, %b}' % fields)
    assert said in str(refusal.value)


def test_bundled_documents_come_in_ever_another_order_and_hold_the_answers() -> None:
    items = load_workload("documents").items
    assert len({item.documents for item in items}) == len(items)
    assert len({text for item in items for text in item.chunks}) == 12
    for item in items:
        assert len(item.chunks) == 5
        own = item.chunks[item.documents.index(item.category)]
        assert any(answer.lower() in own.lower() for answer in item.answers)
