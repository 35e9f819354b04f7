"""No template, and nothing that is given to one, holds the server or fills its memory."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from netgain.errors import RequestRejected, UsageError
from netgain.serving.model.template import ChatTemplate

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(9999) recursive %}{{ loop(range(9999)) }}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}",
        "{{ ['x'] * 10 ** 10 }}",
        "{{ 10 ** 10 * 'x' }}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join(ns.x) %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=3) %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{{ 2 ** (10 ** 10) }}",
        "{{ 'x'.ljust(10 ** 10) }}",
        "{{ lipsum(10 ** 7) }}",
        "{{ ['x'] | map('center', 10 ** 10) | list }}",
        "{% block b %}{{ self.b() }}{% endblock %}",
        "{{ 'x' | center(10 ** 10) }}",
        "{{ 'x\ny' | indent(10 ** 10) }}",
        "{{ [1] | batch(10 ** 10, 'x') | list }}",
        "{{ [1] | slice(10 ** 10) | list }}",
        "{{ '%10000000000d' % 1 }}",
        "{{ '%*d' % (10000000000, 1) }}",
        "{{ '%10000000000d' | format(1) }}",
        "{{ '{:>10000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 10000000000) }}",
        "{{ '{a:>{b}}'.format_map({'a': 1, 'b': 10000000000}) }}",
        "{{ [[1]] | tojson(indent=10 ** 10) }}",
        "{% for i in range(99999) %}{% for j in range(99) %}" + "x" * 10_000 + "{% endfor %}{% endfor %}",
        "{% macro f() %}{% for i in range(99999) %}" + "x" * 10_000 + "{% endfor %}{% endmacro %}{{ f() }}",
    ],
)
def test_work_and_text_without_end_are_refused_soon(source: str) -> None:
    before = psutil.Process().memory_info().rss
    started = time.process_time()
    with pytest.raises(RequestRejected) as caught:
        ChatTemplate(source).render([USER])
    assert time.process_time() - started < 8
    assert psutil.Process().memory_info().rss - before < 300 << 20
    assert caught.value.parameter == "messages"


def test_a_long_conversation_is_no_endless_one() -> None:
    source = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    text = ChatTemplate(source).render([{"role": "user", "content": "word " * 200}] * 5000)
    assert text.count("<|im_end|>") == 5000


def test_each_rendering_has_bounds_of_its_own() -> None:
    template = ChatTemplate("{% for i in range(messages[0].n) %}{% for j in range(1000) %}{% endfor %}{% endfor %}done")
    chats: list[list[dict[str, Any]]] = [[{**USER, "n": n}] for n in (100, 3000, 100, 10, 3000, 150)]

    def ends(messages: list[dict[str, Any]]) -> bool:
        try:
            return template.render(messages) == "done"
        except RequestRejected:
            return False

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(ends, chats)) == [True, False, True, True, False, True]


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ x | nosuch }}", "{% generation %}", "(" * 5 + "{{ " + "(" * 5000, "x" * (1 << 21)]
)
def test_a_source_that_cannot_be_compiled_is_refused_when_loaded(source: str) -> None:
    with pytest.raises(UsageError):
        ChatTemplate(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% generation %}a{{ 1 + 1 }}{% endgeneration %}", "a2"),
        (
            "{% for a in [1, 2, 3] %}{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
            "1/3,2/3,3/3",
        ),
        ("{% for a, b in {'x': 1}.items() %}{{ a ~ b ~ none }}{% else %}none{% endfor %}", "x1None"),
        ("{% for a in nothing %}x{% else %}none{% endfor %}", "none"),
        ("{% for a in [1, 2, 3, 4] if a % 2 == 0 %}{{ loop.previtem }}{{ a }}{% endfor %}", "224"),
        ("{% for a in 'abc' %}{% if a == 'b' %}{% break %}{% endif %}{{ a }}{% endfor %}", "a"),
        ("{% for n in [[1, [2]]] recursive %}{{ n if n is number else loop(n) }}{% endfor %}", "12"),
        ("{{ {'b': 1, 'a': '<é>'} | tojson }}", '{"b": 1, "a": "<é>"}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ 'é\ue000x' | tojson(ensure_ascii=true) }}", '"\\u00e9\ue000x"'),
        ("{{ '%s-%d' % ('a', 3) }}{{ 'x' * 3 }}{{ 2 ** 3 }}{{ [1] + [2] }}", "a-3xxx8[1, 2]"),
        ("{{ '{:>4}{x}'.format(1, x='y') }}{{ 'a' | center(5) }}|", "   1y  a  |"),
        ("{{ ['a', 'b'] | join(', ') }}|{{ 'aa' | replace('a', 'b') }}", "a, b|bb"),
    ],
)
def test_templates_can_do_what_they_usually_do(source: str, expected: str) -> None:
    assert ChatTemplate(source).render([USER]) == expected
