"""Rows that are texts, and answers that the asker begins: what the encoder and the generation stage make of them."""

from __future__ import annotations

import pytest
from tiny_text import word_tokenizer

from harness.answers import generate
from harness.specs import Template
from harness.tasks.rwku_prompts import prompt_of
from harness.text import Encoder
from harness.types import Generation, TextRow

QUESTION, ANSWER = "Which bird nests there ?", "A grey heron"


def encoder(plain: bool = False, **more: object) -> Encoder:
    return Encoder(word_tokenizer(adds_bos=True), Template(plain=plain), 64, **more)  # type: ignore[arg-type]


def text(coder: Encoder, ids: tuple[int, ...]) -> str:
    return coder.tokenizer.decode(list(ids))


def test_a_document_is_bos_text_eos_and_no_template() -> None:
    coder = encoder()
    found = coder.encode(TextRow("d", "", ANSWER, form="text"))
    assert text(coder, found.ids) == f"<s> {ANSWER} </s>" and found.start == 1


def test_a_texts_prompt_stands_as_it_is() -> None:
    coder = encoder()
    row = TextRow("d", "Which bird", "nests there", form="text")
    assert text(coder, coder.prompt(row)) == "<s> Which bird"
    found = coder.encode(row)
    assert text(coder, found.ids[found.start :]) == "nests there </s>"
    asked = coder.prompt(TextRow("q", "Which bird", ""))
    assert text(coder, asked) == "<s> <|user|> Which bird <|assistant|>"
    assert coder.prompt(row) != asked == coder.prompt(TextRow("q", "Which bird", "other"))


def test_a_lead_belongs_to_the_prompt_and_is_not_scored() -> None:
    coder = encoder()
    row = TextRow("q", QUESTION, ANSWER, lead="Answer :")
    asked = f"<s> <|user|> {QUESTION} <|assistant|> Answer :"
    assert text(coder, coder.prompt(row)) == asked
    found = coder.encode(row)
    assert text(coder, found.ids) == f"{asked} {ANSWER} </s>"
    assert text(coder, found.ids[found.start :]) == f"{ANSWER} </s>"
    assert coder.encode(TextRow("q", QUESTION, ANSWER)).ids != found.ids


def test_a_lead_takes_the_place_of_the_plain_one() -> None:
    coder = encoder(plain=True)
    plain = coder.prompt(TextRow("q", QUESTION, ""))
    assert coder.prompt(TextRow("q", QUESTION, "", lead="Answer:")) == plain
    assert text(coder, coder.prompt(TextRow("q", QUESTION, "", lead="Be brief :"))) == (
        f"<s> Question : {QUESTION} Be brief :"
    )


def test_an_instruction_stands_before_a_text_and_is_not_scored() -> None:
    coder = encoder()
    coder.instruct("Be brief , please .")
    found = coder.encode(TextRow("d", "", ANSWER, form="text"))
    assert text(coder, found.ids[: found.start]) == "<s> Be brief , please ."
    assert text(coder, found.ids[found.start :]) == f"{ANSWER} </s>"


def test_generation_tells_rows_apart_by_form_and_lead() -> None:
    coder = encoder()
    rows = (
        TextRow("a", QUESTION, ""),
        TextRow("b", QUESTION, "", lead="Answer :"),
        TextRow("c", QUESTION, "", form="text"),
        TextRow("d", QUESTION, "another target"),
    )

    class Echo:
        def generate(self, token_ids, *, max_tokens, stop=()):
            return tuple((text(coder, tuple(ids)), False) for ids in token_ids)

    said = generate(coder, [Generation("p", rows, 5)], Echo())["p"].texts  # type: ignore[union-attr]
    assert said == (
        f"<s> <|user|> {QUESTION} <|assistant|>",
        f"<s> <|user|> {QUESTION} <|assistant|> Answer :",
        f"<s> {QUESTION}",
        f"<s> <|user|> {QUESTION} <|assistant|>",
    )


def test_an_official_prompt_is_the_public_codes_text_with_one_bos() -> None:
    """There: the template's text with "Answer:" behind it, tokenised with special tokens on, which doubles BOS."""
    coder = encoder()
    turn, lead = prompt_of({"query": QUESTION}, "2")
    message = [{"role": "user", "content": turn}]
    rendered = coder.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    doubled = coder.tokenizer(rendered + "Answer:")["input_ids"]
    bos, eos = coder.tokenizer.bos_token_id, coder.tokenizer.eos_token_id
    assert (doubled[:2], doubled[-1]) == ([bos, bos], eos)
    assert list(coder.prompt(TextRow("q", turn, "", lead=lead))) == doubled[1:-1]


@pytest.mark.parametrize("plain", [False, True])
def test_rows_without_form_and_lead_are_as_ever(plain: bool) -> None:
    coder = encoder(plain)
    found = coder.encode(TextRow("q", QUESTION, ANSWER))
    assert found.ids[: found.start] == coder.prompt(TextRow("q", QUESTION, ""))
    assert text(coder, found.ids[found.start :]) == f"{ANSWER} </s>"
