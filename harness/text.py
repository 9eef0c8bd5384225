"""From a question and its answer to token ids, and which of the ids are the answer.

One class, `Encoder`, is the only place that renders a prompt, so that training, likelihoods and generation
see the same bytes. What it guarantees:

* the prompt's ids are a prefix of the row's ids, and an answer token never holds a character of the prompt;
* the rendered bytes do not depend on today's date, however the chat template asks for it;
* BOS comes exactly once if the tokenizer or its template uses one; EOS closes the answer, never the prompt;
* answer tokens are told by position, never by id, so a pad token that is also EOS hides nothing.

The module loads neither torch nor transformers; the tokenizer is handed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from harness.errors import DataError, ModelError
from harness.specs import Template, content_hash
from harness.types import TextRow

PLAIN_LEAD = "Answer:"
PLAIN_PROMPT = "Question: {prompt}\n" + PLAIN_LEAD
PLAIN_ANSWER = " {target}"
"""The space belongs to the answer: a prompt that ends with a space changes the answer's first token."""

_PROBE = TextRow("probe", "Which river runs through Paris?", "The Seine.")

PromptKey = tuple[str, str, str]
"""Prompt, form and lead of a row."""


def prompt_key(row: TextRow) -> PromptKey:
    """What decides a row's prompt."""
    return row.prompt, row.form, row.lead


@dataclass(frozen=True)
class Encoded:
    """A row as token ids.

    Attributes:
        ids: prompt and answer; the answer's EOS included unless the row was cut.
        start: ids[:start] are the prompt, ids[start:] the answer.
        cut: whether the end of the answer was cut off to fit the length limit.
    """

    ids: tuple[int, ...]
    start: int
    cut: bool = False


class Encoder:
    """Turns rows into token ids under one tokenizer and template.

    Args:
        tokenizer: a transformers tokenizer, or what is called, decodes and names its special ids like one.
        template: the chat template's system prompt and date, or `plain=True` for question and answer lines.
        max_length: most tokens of prompt and answer together; longer answers lose their end.
        instruction: what is said before every question, in the question's own turn and on a line of its own.

    Raises:
        ModelError: the chat template refuses a plain question and answer.
    """

    def __init__(self, tokenizer: Any, template: Template, max_length: int, instruction: str = "") -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.max_length = max_length
        self.instruction = instruction
        self._chat = bool(getattr(tokenizer, "chat_template", None)) and not template.plain
        self._fast = bool(getattr(tokenizer, "is_fast", False))
        self._prompts: dict[PromptKey, tuple[str, list[int], int]] = {}
        self._system = self._probe_system()
        self._bos = self._probe_bos()
        self.eos_ids: frozenset[int] = self._probe_eos()
        """Ids that end an answer: the tokenizer's EOS, and the template's end of turn."""
        pad = tokenizer.pad_token_id
        self.pad_id: int = pad if pad is not None else (tokenizer.eos_token_id or 0)
        """What fills a batch up. It may equal EOS: masks come from lengths."""

    # --- what callers use ---------------------------------------------------------------------------------
    def encode(self, row: TextRow) -> Encoded:
        """Prompt and answer of a row, closed by EOS.

        An answer that does not fit loses its end, EOS first, and the result says so. An empty answer is its
        EOS alone.

        Raises:
            DataError: the prompt alone leaves no room for an answer.
        """
        prompt_text, prompt, raw_length = self._prompt(row)
        if "ids" in row.meta:
            ids = (*prompt, *row.meta["ids"])
            return Encoded(ids[: self.max_length], len(prompt), cut=len(ids) > self.max_length)
        ids = self._join(prompt_text, self._answer_text(row, prompt_text), prompt, raw_length)
        eos = self.tokenizer.eos_token_id
        if eos is not None and (len(ids) == len(prompt) or ids[-1] != eos):
            ids.append(eos)
        return Encoded(tuple(ids[: self.max_length]), len(prompt), cut=len(ids) > self.max_length)

    def prompt(self, row: TextRow) -> tuple[int, ...]:
        """Ids to generate from: the same that `encode` puts before the answer.

        Raises:
            DataError: the prompt alone leaves no room for an answer.
        """
        return tuple(self._prompt(row)[1])

    def instruct(self, text: str) -> None:
        """Say `text` before every question from now on; an empty text says nothing."""
        self.instruction = text.strip()
        self._prompts.clear()

    def lead(self) -> str:
        """What stands before every question in plain text: the system prompt where it is sent so, an instruction."""
        return self._lead("folded" if self.template.system else "none")

    def conversation(self, messages: Sequence[Mapping[str, str]], *, open_answer: bool) -> str:
        """Text of somebody else's conversation under the chat template, with our system prompt, instruction and date.

        Instruction and a folded system prompt go into the first question. With `open_answer` the text ends where the
        assistant's answer begins; without, the last message stays open to be gone on with.
        """
        said = [dict(message) for message in messages]
        first = next((m for m in said if m["role"] == "user"), None)
        if first is not None:
            first["content"] = self._lead(self._system) + first["content"]
        if self._system == "role":
            said.insert(0, {"role": "system", "content": self.template.system or ""})
        if open_answer:
            return self._render(said, open_answer=True)
        last = said[-1]["content"]
        text = self._render(said, open_answer=False)
        return text[: text.rfind(last.strip()) + len(last.strip())]

    def ids(self, text: str) -> tuple[int, ...]:
        """Ids of a text as it stands: no template, no BOS, no EOS."""
        return tuple(self._ids(text)[0])

    @property
    def bos(self) -> tuple[int, ...]:
        """What stands before every text: BOS, or nothing where the tokenizer uses none."""
        return (self.tokenizer.bos_token_id,) if self._bos else ()

    def decode(self, ids: Sequence[int]) -> str:
        """Text of some ids, without special tokens."""
        return self.tokenizer.decode([int(i) for i in ids], skip_special_tokens=True)

    def describe(self) -> dict[str, Any]:
        """What decided the bytes of a prompt, for the run record.

        `system` is `none`, `role` (sent as a system message) or `folded` (put before the question, since the
        template has no system role). `instruction` is what a method has put before every question, None for nothing.
        `rendered` is a hash of one rendered question and answer.
        """
        source = self.tokenizer.chat_template if self._chat else PLAIN_PROMPT + PLAIN_ANSWER
        prompt_text = self._prompt_text(_PROBE)
        return {
            "kind": "chat" if self._chat else "plain",
            "template": content_hash(source),
            "rendered": content_hash([prompt_text, self._answer_text(_PROBE, prompt_text)]),
            "system": self._system,
            "system_text": self.template.system,
            "instruction": self.instruction or None,
            "date": self.template.date if self._chat else None,
            "bos": self._bos,
            "max_length": self.max_length,
        }

    def _prompt(self, row: TextRow) -> tuple[str, list[int], int]:
        """Text, ids, and number of ids before BOS was put in order; kept, since a question has several answers."""
        key = prompt_key(row)
        if key not in self._prompts:
            text = self._prompt_text(row)
            self._prompts[key] = (text, *self._prompt_ids(row, text))
        return self._prompts[key]

    # --- rendering ----------------------------------------------------------------------------------------
    def _prompt_text(self, row: TextRow) -> str:
        if row.form == "text":
            return self._lead("none") + row.prompt
        if self._chat:
            return self._render(self._messages(row, self._system), open_answer=True) + row.lead
        text = self._lead(self._system) + PLAIN_PROMPT.format(prompt=row.prompt)
        return text.removesuffix(PLAIN_LEAD) + row.lead if row.lead else text

    def _answer_text(self, row: TextRow, prompt_text: str) -> str:
        """What the template writes after the prompt: the answer and whatever closes it."""
        if row.form == "text":
            return row.target
        if not self._chat:
            return PLAIN_ANSWER.format(target=row.target)
        said = f"{row.lead} {row.target}" if row.lead else row.target
        messages = [*self._messages(row, self._system), {"role": "assistant", "content": said}]
        full_text = self._render(messages, open_answer=False)
        if full_text.startswith(prompt_text):
            return full_text[len(prompt_text) :]
        # The template writes the turn differently once it is closed: start at the answer itself.
        return full_text[max(full_text.rfind(row.target.strip()), 0) :]

    def _lead(self, system: str) -> str:
        """What stands before the question in its own turn: a folded system prompt, an instruction."""
        folded = f"{self.template.system}\n\n" if system == "folded" else ""
        return folded + (f"{self.instruction}\n" if self.instruction else "")

    def _messages(self, row: TextRow, system: str) -> list[dict[str, str]]:
        user = {"role": "user", "content": self._lead(system) + row.prompt}
        return (
            [{"role": "system", "content": self.template.system or ""}, user] if system == "role" else [user]
        )

    def _render(self, messages: list[dict[str, str]], open_answer: bool) -> str:
        """Text of a conversation. Both ways in which templates ask for the date get the pinned one."""
        return self.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=open_answer,
            date_string=self.template.date,
            strftime_now=self._strftime,
        )

    def _strftime(self, form: str) -> str:
        try:
            return datetime.strptime(self.template.date, "%d %b %Y").strftime(form)
        except ValueError:  # a date in words of the board's own: the template gets it as it stands
            return self.template.date

    # --- ids ----------------------------------------------------------------------------------------------
    def _ids(self, text: str) -> tuple[list[int], list[tuple[int, int]] | None]:
        """Ids of a text without any that the tokenizer would add, and the characters that each covers."""
        if not self._fast:
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"]), None
        out = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        return list(out["input_ids"]), [(int(a), int(b)) for a, b in out["offset_mapping"]]

    def _one_bos(self, ids: list[int]) -> list[int]:
        bos = self.tokenizer.bos_token_id
        if not self._bos:
            return ids
        first = next((i for i, token in enumerate(ids) if token != bos), len(ids))
        return [bos, *ids[first:]]

    def _prompt_ids(self, row: TextRow, prompt_text: str) -> tuple[list[int], int]:
        """The prompt's ids, and how many of them there were before BOS was put in order."""
        raw, _ = self._ids(prompt_text)
        ids = self._one_bos(raw)
        if len(ids) >= self.max_length:
            raise DataError(
                f"row {row.id}: the prompt alone is {len(ids)} tokens long",
                f"max_length is {self.max_length}, and the answer needs room too",
                "raise max_length in the board, or drop the row",
            )
        return ids, len(raw)

    def _join(self, prompt_text: str, answer_text: str, prompt: list[int], raw_length: int) -> list[int]:
        """Ids of prompt and answer that begin with the prompt's.

        The text is tokenised in one piece where a token ends exactly at the end of the prompt. Where a token
        would straddle that place, the answer is tokenised by itself.
        """
        ids, spans = self._ids(prompt_text + answer_text)
        boundary = len(prompt_text)
        clean = spans is None or (
            all(end <= boundary for _, end in spans[:raw_length])
            and all(begin >= boundary for begin, end in spans[raw_length:] if end > begin)
        )
        joined = self._one_bos(ids)
        if clean and joined[: len(prompt)] == prompt:
            return joined
        return [*prompt, *self._ids(answer_text)[0]]

    # --- what is found out once ---------------------------------------------------------------------------
    def _probe_system(self) -> str:
        """How the system prompt is sent: `none`, `role`, or `folded` into the question."""
        if not self._chat:
            return "folded" if self.template.system else "none"
        from jinja2 import TemplateError

        if self.template.system:
            try:
                rendered = self._render(self._messages(_PROBE, "role"), open_answer=True)
                if self.template.system.strip() in rendered:
                    return "role"
            except TemplateError:
                pass  # the template has no system role: it is folded
        system = "folded" if self.template.system else "none"
        try:
            answer = {"role": "assistant", "content": _PROBE.target}
            self._render([*self._messages(_PROBE, system), answer], open_answer=False)
        except TemplateError as error:
            raise ModelError(
                f"the chat template refuses one question and its answer: {error}",
                "a template needs the roles user and assistant",
                "mend the model's chat template, or set plain = true under [template] in the board",
            ) from error
        return system

    def _probe_bos(self) -> bool:
        """Whether BOS is expected: the tokenizer adds it to plain text, or its chat template writes it."""
        bos = self.tokenizer.bos_token_id
        if bos is None:
            return False
        if list(self.tokenizer("a")["input_ids"])[:1] == [bos]:
            return True
        if not getattr(self.tokenizer, "chat_template", None):
            return False
        from jinja2 import TemplateError

        try:
            rendered = self._render([{"role": "user", "content": _PROBE.prompt}], open_answer=True)
        except TemplateError:  # a broken template says nothing, and a plain encoder does not need it
            return False
        return self._ids(rendered)[0][:1] == [bos]

    def _probe_eos(self) -> frozenset[int]:
        """The tokenizer's EOS, and the special token with which the template closes an answer."""
        found = {self.tokenizer.eos_token_id} - {None}
        if self._chat:
            text = self._answer_text(_PROBE, self._prompt_text(_PROBE))
            closing = text[text.find(_PROBE.target) + len(_PROBE.target) :].strip()
            special = set(getattr(self.tokenizer, "all_special_ids", ()))
            added = getattr(self.tokenizer, "added_tokens_decoder", {})
            special |= {i for i, token in added.items() if getattr(token, "special", False)}
            found |= set(self._ids(closing)[0][:1]) & special
        return frozenset(found)
