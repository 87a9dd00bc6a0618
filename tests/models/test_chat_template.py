import json
from datetime import datetime

import pytest

from argosy.errors import ArgosyError, ConfigError, InvalidRequest
from argosy.models.chat_template import MAX_SOURCE_CHARACTERS, ChatTemplate

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
PARTS = (
    "{% for m in messages %}{% if m.content is string %}S:{{ m.content }}{% else %}"
    "{% for part in m.content %}P:{{ part.text }}{% endfor %}{% endif %}{% endfor %}"
)
DOUBLING = "{%% set ns = namespace(s='ab') %%}{%% for i in range(60) %%}%s{%% endfor %%}{{ ns.s }}"
USER = [{"role": "user", "content": "hi"}]


def render(source, messages=USER, **options):
    return ChatTemplate(source).render(messages, **options)


def transformers_render(source, messages, **options):
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template([messages], chat_template=source, **options)
    return rendered[0]


@pytest.mark.parametrize(
    "source",
    [
        CHATML,
        "  {%- for m in messages -%}\n    {% if loop.first %}\n    first {{ loop.length }}\n    {% endif %}\n"
        "{{ m | tojson }}\n{% endfor %}\n",
        "{{ tools | tojson(indent=2) }}{{ {'a': '<é> &\\''} | tojson }}",
        "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}{{ m.role | upper }}{% endfor %}",
        "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.last }}{{ m.content | trim }};{% endfor %}",
        "{% macro show(x, n=2) %}[{{ x }}{{ n }}]{% endmacro %}{{ show('a') }}{{ show('b', n=3) }}",
        "{% generation %}{% set x = 1 %}a{% endgeneration %}{{ x is defined }}{{ nothing }}{{ documents }}",
        "{% set ns = namespace(found=false) %}{% for m in messages %}{% set ns.found = true %}{% endfor %}{{ ns.found }}",
        "{{ messages | map(attribute='role') | join(', ') }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
        "{% set d = dict(a=1) %}{% for k, v in d | items %}{{ k ~ v ~ '!' }}{% endfor %}"
        "{{ [1, 2] + [3] }}{{ (1, 'x') }}{{ {'k': [1]} }}",
        "{{ messages[0].content.split('i') }}{{ 'a-b'.replace('-', '+') }}"
        "{{ '%s=%d' % ('x', 3) }}{{ '{:>4}'.format('r') }}{{ 2 ** 3 * 'z' }}",
        "{{ messages[-1]['content'][::-1] }}{{ messages[1:] | length }}{{ '\\n'.join(['a', 'b']) | indent(2) }}",
    ],
)
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_text_equals_transformers(source, add_generation_prompt):
    messages = [*USER, {"role": "assistant", "content": " hello <b> é "}, {"role": "user", "content": "again"}]
    options = {"add_generation_prompt": add_generation_prompt, "tools": [{"type": "function", "function": {"name": "f"}}]}
    assert render(source, messages, **options) == transformers_render(source, messages, **options)


@pytest.mark.parametrize(
    "source",
    [CHATML, CHATML.replace("m['content']", "m['content'] | trim"), "{% for m in messages %}{{ m.content }}{% endfor %}#"],
)
@pytest.mark.parametrize("final", ["The answer is", "trailing ", " both ", "a", "hi"])
def test_continuing_the_final_message_equals_transformers(source, final):
    messages = [*USER, {"role": "assistant", "content": final}]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(source, messages, **options) == transformers_render(source, messages, **options)


def test_continuing_ends_inside_the_message():
    messages = [*USER, {"role": "assistant", "content": "Sure: "}]
    text = render(CHATML, messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nSure: "


@pytest.mark.parametrize(
    ("source", "messages", "options"),
    [
        (CHATML, USER, {"add_generation_prompt": True}),
        (CHATML, [], {"add_generation_prompt": False}),
        (CHATML, [{"role": "assistant", "content": None}], {"add_generation_prompt": False}),
        ("constant", USER, {"add_generation_prompt": False}),
    ],
)
def test_continuing_is_refused_where_it_makes_no_sense(source, messages, options):
    with pytest.raises(InvalidRequest) as caught:
        render(source, messages, continue_final_message=True, **options)
    assert caught.value.param == "continue_final_message"


def test_variables_and_special_tokens_reach_the_template():
    text = render(
        "{{ bos_token }}{{ enable_thinking }}{{ documents[0].t }}",
        special_tokens={"bos_token": "<s>"},
        variables={"enable_thinking": False, "documents": [{"t": 1}]},
    )
    assert text == "<s>False1"


def test_variables_may_not_replace_the_messages():
    with pytest.raises(InvalidRequest) as caught:
        render(CHATML, variables={"messages": []})
    assert caught.value.param == "chat_template_kwargs.messages"


def test_arguments_are_left_as_they_were():
    messages = [
        {"role": "assistant", "content": [{"type": "text", "text": "x"}], "tool_calls": [{"function": {"arguments": "{}"}}]}
    ]
    before = json.dumps(messages)
    render(PARTS, messages, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(messages) == before


def test_the_date_comes_from_the_given_clock():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert template.render(USER) == "26 Jul 2024"


def test_parts_are_joined_for_a_template_that_expects_text():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<|im_end|>" in render(CHATML, [{"role": "user", "content": parts}])


@pytest.mark.parametrize(
    "source",
    [
        PARTS,
        "{% for m in messages %}{% for p in m['content'] | list %}P:{{ p.text }}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set body = m.content %}{% for p in body %}P:{{ p.text }}{% endfor %}{% endfor %}",
        "{% macro f(content) %}{% for p in content %}P:{{ p.text }}{% endfor %}{% endmacro %}{{ f(messages[0].content) }}",
    ],
)
def test_parts_stay_parts_for_a_template_that_loops_over_them(source):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert ChatTemplate(source).reads_content_parts
    assert render(source, [{"role": "user", "content": parts}]) == "P:aP:b"


def test_text_stays_text_for_a_template_that_takes_both():
    assert render(PARTS) == "S:hi"


@pytest.mark.parametrize(
    "part", [{"type": "image_url", "image_url": {}}, {"type": "text"}, {"type": "text", "text": 1}, 3, {}]
)
def test_other_parts_than_text_are_refused_by_name(part):
    with pytest.raises(InvalidRequest) as caught:
        render(CHATML, [*USER, {"role": "user", "content": [{"type": "text", "text": "x"}, part]}])
    assert caught.value.param == "messages[1].content[1]"


def test_missing_content_is_empty_text():
    message = {"role": "assistant", "content": None, "name": None}
    assert render(CHATML, [message], add_generation_prompt=False) == "<|im_start|>assistant\n<|im_end|>\n"
    assert render("{{ messages[0] | tojson }}", [message]) == '{"role": "assistant", "content": ""}'


def test_tool_call_arguments_are_decoded():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "é"}'}}
    source = (
        "{% for c in messages[0].tool_calls %}{{ c.function.arguments.x }}{{ c.function.arguments | tojson }}{% endfor %}"
    )
    assert render(source, [{"role": "assistant", "content": None, "tool_calls": [call]}]) == 'é{"x": "é"}'


def test_tool_call_arguments_that_are_no_json_are_refused():
    call = {"function": {"name": "f", "arguments": "{x"}}
    with pytest.raises(InvalidRequest) as caught:
        render(CHATML, [{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert caught.value.param == "messages[0].tool_calls[0].function.arguments"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must\\nalternate') }}", "refuses the messages: roles must alternate"),
        ("{{ nothing.at.all }}", "'nothing' is undefined"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{% include 'other' %}", "TypeError"),
    ],
)
def test_errors_of_the_template_are_one_clear_line(source, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        render(source)
    assert "\n" not in str(caught.value)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 'open",
        "{{ x | no_such_filter }}",
        "(" * 10 + "{{" + "(" * 5000,
        "{{ " + "-" * 50_000 + "1 }}",
        "x" * (MAX_SOURCE_CHARACTERS + 1),
    ],
)
def test_a_template_that_does_not_compile_is_a_configuration_error(source):
    with pytest.raises(ConfigError) as caught:
        ChatTemplate(source)
    assert "\n" not in str(caught.value)


def test_a_line_number_is_given():
    with pytest.raises(ConfigError, match="line 3"):
        ChatTemplate("a\nb\n{% endfor %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ messages[0].__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__func__.__globals__ }}",
        "{{ '' | attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{% set f = '{0.__class__}'.format %}{{ f(messages) }}",
        "{{ ['{0.__class__.__mro__}'] | map('format', messages) | list }}",
        "{{ '%s' % ''.__class__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ joiner.__init__.__globals__ }}",
        "{{ dict.__base__.__subclasses__() }}",
        "{{ dict.__globals__ }}",
        "{% set ns = namespace(__class__=1) %}{{ ns.__class__ }}",
        "{{ self._TemplateReference__context }}",
        "{{ self.__init__.__globals__ }}",
        "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
        "{% for x in range(1) %}{{ loop.__init__.__globals__ }}{{ loop._iterator }}{% endfor %}",
        "{{ messages | map(attribute='__class__') | list }}",
        "{{ messages | sort(attribute='__class__') | first | attr('__init__') }}",
        "{{ (messages | groupby('role')).__class__ }}",
        "{{ range.__globals__ }}",
        "{% import 'os' as os %}{{ os }}",
        "{{ lipsum.__globals__ }}",
    ],
)
def test_no_way_out_of_the_sandbox(source):
    try:
        text = render(source)
    except InvalidRequest:
        return
    assert not any(leak in text for leak in ("class", "module", "function", "built", "object", "uid=", "os.")), text


@pytest.mark.parametrize("call", ["append(1)", "clear()", "pop()", "insert(0, 1)", "sort()"])
def test_messages_cannot_be_changed(call):
    with pytest.raises(InvalidRequest):
        render("{{ messages." + call + " }}")


BOMBS = {
    "product": "{{ 'a' * 10 ** 10 }}",
    "list product": "{{ [0] * 10 ** 9 }}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "big numbers": "{% set ns = namespace(n=9) %}{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "sum of strings": DOUBLING % "{% set ns.s = ns.s + ns.s %}",
    "tilde": DOUBLING % "{% set ns.s = ns.s ~ ns.s %}",
    "captured block": DOUBLING % "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}",
    "nested lists": DOUBLING % "{% set ns.s = [ns.s, ns.s] %}",
    "nested tuples": DOUBLING % "{% set ns.s = (ns.s, ns.s) %}",
    "nested dicts": DOUBLING % "{% set ns.s = {'a': ns.s, 'b': ns.s} %}",
    "dict()": DOUBLING % "{% set ns.s = dict(a=ns.s, b=ns.s) %}",
    "list sums": DOUBLING.replace("'ab'", "[1]") % "{% set ns.s = ns.s + ns.s %}",
    "replace filter": DOUBLING % "{% set ns.s = ns.s | replace('a', ns.s) %}",
    "replace method": DOUBLING % "{% set ns.s = ns.s.replace('a', ns.s) %}",
    "join filter": DOUBLING % "{% set ns.s = ns.s | join(ns.s) %}",
    "join method": DOUBLING % "{% set ns.s = ns.s.join(ns.s) %}",
    "indent by text": DOUBLING % "{% set ns.s = ('\\n' ~ ns.s) | indent(ns.s) %}",
    "center filter": "{{ 'a' | center(10000000000) }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "zfill": "{{ '1'.zfill(width) }}",
    "tabs": "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "percent width": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (width, 1) }}",
    "percent precision": "{{ '%.9999999999f' % 1 }}",
    "format width": "{{ '{:>10000000000}'.format(1) }}",
    "nested width": "{{ '{:{}}'.format(1, width) }}",
    "format filter": "{{ '%10000000000d' | format(1) }}",
    "batch": "{{ [1] | batch(width, 0) | list }}",
    "slice": "{{ [1] | slice(width) | list }}",
    "sum of lists": "{{ [[0] * 1000] * 1000 | sum(start=[]) }}{{ ([[0] * 1000] * 1000) | sum(start=[]) }}",
    "json indent": "{{ messages | tojson(indent=width) }}",
    "mapped": "{{ (['a' * 100000] * 10000) | map('upper') | list | length }}",
    "bytes": "{{ (1).to_bytes(width, 'big') }}",
    "encoded": "{{ 'a'.encode() * width }}",
    "translate": "{{ 'aaaa'.translate({97: 'b' * 100000}) }}",
    "range": "{% for i in range(width) %}{% endfor %}",
    "loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops without a body": "{% for i in range(99999) %}{{ range(99999) | map('abs') | list | length }}{% endfor %}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "date": "{{ strftime_now('%9999999999Y') }}",
}  # fmt: skip


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS)
def test_a_template_cannot_take_memory_or_time(source):
    with pytest.raises(ArgosyError) as caught:
        render(source, variables={"width": 10**10})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_long_conversation_is_within_the_budget():
    messages = [{"role": "user", "content": "word " * 500}, {"role": "assistant", "content": "reply " * 500}] * 500
    assert len(render(CHATML, messages)) > 2_000_000


def test_one_rendering_does_not_eat_the_budget_of_the_next():
    template = ChatTemplate("{% for i in range(60000) %}{% endfor %}ok")
    assert [template.render(USER) for _ in range(20)] == ["ok"] * 20


def test_values_that_are_not_json_are_refused():
    with pytest.raises(InvalidRequest, match="object"):
        render(CHATML, [{"role": "user", "content": "x", "extra": object()}])
