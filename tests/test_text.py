from __future__ import annotations

import datetime
import subprocess
import sys

import pytest
from tiny_text import CHAT, NO_SYSTEM, merging_tokenizer, word_tokenizer

from harness.errors import DataError, ModelError
from harness.specs import Template
from harness.text import Encoder
from harness.types import TextRow

ROW = TextRow("rows/0", "Who kept the light at Marl Point?", "Ada Finch kept the light.")
STRFTIME = "{{ bos_token }}Today is {{ strftime_now('%d %b %Y') }} " + CHAT.replace("{{ bos_token }}", "")
DATE_STRING = (
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{{ bos_token }}Today is {{ date_string }} " + CHAT.replace("{{ bos_token }}", "")
)


def words(tokenizer, ids):
    return tokenizer.convert_ids_to_tokens(list(ids))


def test_prompt_is_a_prefix_and_the_answer_closes_with_eos():
    tokenizer = word_tokenizer()
    encoder = Encoder(tokenizer, Template(), 64)
    encoded = encoder.encode(ROW)
    assert encoded.ids[: encoded.start] == encoder.prompt(ROW)
    assert words(tokenizer, encoded.ids[encoded.start :]) == [
        "Ada",
        "Finch",
        "kept",
        "the",
        "light",
        ".",
        "</s>",
    ]
    assert words(tokenizer, encoder.prompt(ROW))[:2] == ["<s>", "<|user|>"]
    assert not encoded.cut
    assert encoder.decode(encoded.ids[encoded.start :]) == "Ada Finch kept the light ."
    assert (encoder.eos_ids, encoder.pad_id) == (frozenset({2}), 0)


def test_plain_template_to_the_byte():
    tokenizer = word_tokenizer()
    seen = []
    encoder = Encoder(tokenizer, Template(plain=True), 64)
    encoder._ids = lambda text, ids=encoder._ids: (seen.append(text), ids(text))[1]
    encoder.encode(ROW)
    assert "Question: Who kept the light at Marl Point?\nAnswer: Ada Finch kept the light." in seen
    assert "Question: Who kept the light at Marl Point?\nAnswer:" in seen


def test_plain_rows_close_with_eos_and_begin_with_the_models_bos():
    tokenizer = word_tokenizer()
    encoded = Encoder(tokenizer, Template(plain=True), 64).encode(ROW)
    shown = words(tokenizer, encoded.ids)
    assert shown[:3] == ["<s>", "Question", ":"] and shown[-1] == "</s>"
    assert shown[encoded.start - 2 : encoded.start + 1] == ["Answer", ":", "Ada"]


@pytest.mark.parametrize("adds_bos", [False, True])
@pytest.mark.parametrize("writes_bos", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_exactly_one_bos_and_no_eos_in_the_prompt(adds_bos, writes_bos, plain):
    chat = CHAT if writes_bos else CHAT.replace("{{ bos_token }}", "")
    encoder = Encoder(word_tokenizer(chat=chat, adds_bos=adds_bos), Template(plain=plain), 64)
    ids = encoder.encode(ROW).ids
    assert ids.count(1) == int(adds_bos or writes_bos)
    assert ids[0] == 1 or not (adds_bos or writes_bos)
    assert 2 not in encoder.prompt(ROW)
    assert ids.count(2) == 1 and ids[-1] == 2


def test_bos_written_twice_by_a_template_comes_once():
    encoder = Encoder(word_tokenizer(chat="{{ bos_token }}" + CHAT, adds_bos=True), Template(), 64)
    assert encoder.encode(ROW).ids[:2] == (1, 4)


@pytest.mark.parametrize("chat", [STRFTIME, DATE_STRING])
def test_bytes_do_not_depend_on_todays_date(chat, monkeypatch):
    def rendered(today):
        class Clock(datetime.datetime):
            @classmethod
            def now(cls, tz=None):
                return cls(*today)

        import transformers.utils.chat_template_utils as utils

        monkeypatch.setattr(utils, "datetime", Clock)
        encoder = Encoder(word_tokenizer(chat=chat), Template(), 64)
        unpinned = encoder.tokenizer.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False)
        return (encoder.prompt(ROW), encoder.encode(ROW), encoder.describe()), unpinned

    (first, today), (second, later) = rendered((2025, 4, 10)), rendered((2026, 1, 1))
    assert first == second and today != later
    assert words(word_tokenizer(), first[0])[:6] == ["<s>", "Today", "is", "10", "Apr", "2025"]


def test_another_date_is_another_template():
    ours, other = (
        Encoder(word_tokenizer(chat=DATE_STRING), Template(date=d), 64).describe()
        for d in ("10 Apr 2025", "Hi")
    )
    assert ours["rendered"] != other["rendered"] and ours["date"] == "10 Apr 2025"


def test_system_prompt_as_a_role_or_folded():
    system = Template(system="Be brief, please.")
    role = Encoder(word_tokenizer(), system, 64)
    folded = Encoder(word_tokenizer(chat=NO_SYSTEM + CHAT), system, 64)
    ignored = Encoder(word_tokenizer(chat=CHAT.replace("<|system|>{{ m['content'] }}", "")), system, 64)
    assert [e.describe()["system"] for e in (role, folded, ignored)] == ["role", "folded", "folded"]
    assert words(role.tokenizer, role.prompt(ROW))[:3] == ["<s>", "<|system|>", "Be"]
    assert words(folded.tokenizer, folded.prompt(ROW))[:3] == ["<s>", "<|user|>", "Be"]
    assert folded.prompt(ROW) == ignored.prompt(ROW)
    assert Encoder(word_tokenizer(), Template(), 64).describe()["system"] == "none"


def test_a_template_that_refuses_everything_is_a_model_error():
    with pytest.raises(ModelError, match="plain = true"):
        Encoder(word_tokenizer(chat="{{ raise_exception('never') }}"), Template(), 64)


def test_eos_is_not_written_twice_and_an_end_of_turn_counts_as_eos():
    gemma = CHAT.replace("{{ eos_token }}", "<|end|> ")
    tokenizer = word_tokenizer(chat=gemma)
    encoder = Encoder(tokenizer, Template(), 64)
    assert words(tokenizer, encoder.encode(ROW).ids)[-3:] == [".", "<|end|>", "</s>"]
    assert encoder.eos_ids == {2, 7}


def test_pad_that_is_eos_keeps_the_answers_eos():
    encoder = Encoder(word_tokenizer(pad=None), Template(), 64)
    assert encoder.pad_id == 2
    encoded = encoder.encode(ROW)
    assert encoded.ids[encoded.start :][-1] == 2


def test_a_token_that_would_straddle_the_boundary_is_split():
    chat = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    encoder = Encoder(merging_tokenizer(chat), Template(), 16)
    tokenizer = encoder.tokenizer
    assert words(tokenizer, tokenizer("abcd", add_special_tokens=False)["input_ids"]) == ["a", "bc", "d"]
    row = TextRow("r", "ab", "cd")
    encoded = encoder.encode(row)
    assert words(tokenizer, encoded.ids) == ["a", "b", "c", "d", "</s>"]
    assert encoded.start == 2 and encoded.ids[:2] == encoder.prompt(row)


def test_equal_ids_on_both_sides_do_not_hide_a_straddling_token():
    chat = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    encoder = Encoder(word_tokenizer(chat=chat), Template(), 16)
    encoded = encoder.encode(TextRow("r", "Who xx", "yy light"))  # "xx" and "xxyy" are both <unk>
    assert words(encoder.tokenizer, encoded.ids) == ["Who", "<unk>", "<unk>", "light", "</s>"]
    assert encoded.start == 2


def test_a_template_that_writes_the_open_turn_differently():
    chat = CHAT.replace("<|assistant|>{% endif %}", "<|assistant|>Today is {% endif %}")
    encoder = Encoder(word_tokenizer(chat=chat), Template(), 64)
    encoded = encoder.encode(ROW)
    assert encoded.ids[: encoded.start] == encoder.prompt(ROW)
    assert words(encoder.tokenizer, encoded.ids[encoded.start :])[:2] == ["Ada", "Finch"]


def test_a_long_answer_loses_its_end_and_a_long_prompt_is_refused():
    encoder = Encoder(word_tokenizer(), Template(), 14)
    whole = Encoder(word_tokenizer(), Template(), 64).encode(ROW)
    cut = encoder.encode(ROW)
    assert cut.ids == whole.ids[:14] and cut.cut and cut.start == whole.start
    assert cut.ids[-1] not in encoder.eos_ids
    tight = Encoder(word_tokenizer(), Template(), whole.start)
    for call in (tight.encode, tight.prompt):
        with pytest.raises(DataError, match=r"rows/0.*max_length"):
            call(ROW)


def test_an_empty_answer_is_its_eos():
    for template in (Template(), Template(plain=True)):
        encoder = Encoder(word_tokenizer(), template, 64)
        encoded = encoder.encode(TextRow("r", "Hi", ""))
        assert encoded.ids[encoded.start :] == (2,)


def test_describe_is_equal_for_equal_prompts_only():
    a, b, c = (
        Encoder(word_tokenizer(), t, 64).describe() for t in (Template(), Template(), Template(system="Hi"))
    )
    assert a == b and a["rendered"] != c["rendered"]
    assert {"template", "system", "date", "bos"} <= set(a)


def test_importing_loads_neither_torch_nor_transformers():
    code = "import sys, harness.text; print({'torch', 'transformers', 'jinja2'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
