r"""Prompt templates, and what answer format a text asks for.

| name | asks for | |
|---|---|---|
| `boxed` | `\boxed{}` | |
| `dapo` | a last line `Answer: VALUE` | DAPO's training prompt |
| `gsm8k` | a last line `#### NUMBER` | |
| `r1` | `<answer>` tags behind `<think>` tags | DeepSeek-R1-Zero's; a system message in chats |
| `none` | nothing | the problem as the data holds it, for data that holds its prompt |
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.verifier import AnswerFormat

Messages = tuple[dict[str, str], ...]

SEEN = 100  # rows by which columns and answer format are recognised


@dataclass(frozen=True)
class Template:
    """What stands around a problem.

    Attributes:
        user: The user message, with `{question}` in it.
        system: The system message of a chat.
        plain: The whole prompt where there is no chat; `None` if `user` does there too.
    """

    user: str
    system: str | None = None
    plain: str | None = None

    @property
    def text(self) -> str:
        """All of it, to see what it asks for."""
        return f"{self.system or ''}\n{self.user}"


# arXiv 2501.12948, table 1
_R1 = (
    "A conversation between User and Assistant. The user asks a question, and the Assistant "
    "solves it. The assistant first thinks about the reasoning process in the mind and then "
    "provides the user with the answer. The reasoning process and answer are enclosed within "
    "<think> </think> and <answer> </answer> tags, respectively, i.e., <think> reasoning process "
    "here </think> <answer> answer here </answer>."
)

TEMPLATES = {
    "boxed": Template("{question}\n\nReason step by step and put the final answer in \\boxed{}."),
    # the prompt column of DAPO-Math-17k
    "dapo": Template(
        "Solve the following math problem step by step. The last line of your response should be "
        "of the form Answer: $Answer (without quotes) where $Answer is the answer to the problem."
        '\n\n{question}\n\nRemember to put your answer on its own line after "Answer:".'
    ),
    "gsm8k": Template(
        "{question}\n\nReason step by step and end with a line of the form `#### NUMBER`."
    ),
    "r1": Template("{question}", _R1, f"{_R1} User: {{question}}\nAssistant:"),
    "none": Template("{question}"),
}

_DEFAULTS: dict[AnswerFormat, str] = {
    "boxed": "boxed",
    "answer": "dapo",
    "gsm8k": "gsm8k",
    "think_answer": "r1",
}

# what verl's preprocessing of MATH and GSM8K puts behind a problem
_SUFFIXES = (
    " Let's think step by step and output the final answer within \\boxed{}.",
    ' Let\'s think step by step and output the final answer after "####".',
)
_WRAPPERS = [
    *(t.user.split("{question}") for t in TEMPLATES.values() if t.user != "{question}"),
    *(["", suffix] for suffix in _SUFFIXES),
]

# requests that evaluations and data sets put behind a problem in many wordings
_BY_STEPS = (
    r"(?:[Pp]lease|[Ll]et(?:'|\u2019)?s|Let us|Think|Reason|Solve|Work)\b[^.?\n]{0,60}?"
    r"\bstep[ -]by[ -]step"
)
_PLACED = (
    r"(?:[Pp]lease )?(?:[Pp]ut|[Oo]utput|[Gg]ive|[Ww]rite|[Pp]resent|[Pp]rovide|[Pp]lace|"
    r"[Ee]nclose|[Rr]eturn)\b[^.?\n]{0,60}?\\boxed(?:\{\s*\})?[^.?\n]{0,10}"
)
_REQUEST = re.compile(rf"\s+(?:{_BY_STEPS}(?:[,;]?\s*(?:and\s+)?{_PLACED})?|{_PLACED})[.!]?\s*\Z")

_ASKS: dict[AnswerFormat, re.Pattern[str]] = {
    "boxed": re.compile(r"\\boxed"),
    "answer": re.compile(r"\banswer\s*:", re.IGNORECASE),
    "gsm8k": re.compile(r"####"),
    "think_answer": re.compile(r"<answer>"),
}
# `Answer:` at the very end begins the response; it does not ask for such a line in it
_CUE = re.compile(r"answer\s*:\s*$", re.IGNORECASE)


def asked_formats(text: str) -> set[AnswerFormat]:
    r"""The answer formats that a text asks for or shows.

    Example:
        >>> asked_formats(r"Put it in \boxed{}.")
        {'boxed'}
        >>> asked_formats("Question: {question}\nAnswer:")
        set()
    """
    text = _CUE.sub("", text)
    return {name for name, pattern in _ASKS.items() if pattern.search(text)}


def bare(text: str) -> str:
    r"""A problem without the published prompts that a data set put around it.

    Example:
        >>> bare(TEMPLATES["dapo"].user.replace("{question}", "What is 1+1?"))
        'What is 1+1?'
        >>> bare("What is 1+1?\nPlease reason step by step. Put your answer in \\boxed{}.")
        'What is 1+1?'
    """
    while (inner := _unwrapped(text)) not in ("", text):
        text = inner
    return text


def _unwrapped(text: str) -> str:
    for prefix, suffix in _WRAPPERS:
        if text.startswith(prefix) and text.endswith(suffix):
            return text[len(prefix) : len(text) - len(suffix)].strip()
    return _REQUEST.sub("", text)


def asked_by_most(problems: Iterable[str]) -> AnswerFormat | None:
    """The answer format that most problems ask for themselves; `None` if they do not agree."""
    texts = list(problems)
    counts = Counter(name for text in texts for name in asked_formats(text))
    found = [name for name, count in counts.items() if 2 * count > len(texts)]
    return found[0] if len(found) == 1 else None


def asked_around(histories: Iterable[Messages], system: str | None) -> set[AnswerFormat]:
    """The formats that most of the data's own messages before the problem ask for or show.

    Args:
        histories: The messages before each problem.
        system: Replaces the system messages among them.

    Example:
        >>> asked_around([({"role": "system", "content": "End with Answer: X."},)], None)
        {'answer'}
    """
    texts = [
        "\n".join(m["content"] for m in history if system is None or m["role"] != "system")
        for history in histories
    ]
    counts = Counter(name for text in texts for name in asked_formats(text))
    return {name for name, count in counts.items() if 2 * count > len(texts)}


def choose(
    template: str | None,
    answer_format: AnswerFormat | None,
    system: str | None,
    asked: AnswerFormat | None,
    inside: AnswerFormat | None = None,
    around: AbstractSet[AnswerFormat] = frozenset(),
) -> tuple[Template, AnswerFormat]:
    """The template and the answer format of a task, one from the other where one is `None`.

    Args:
        template: A name, or a text with `{question}`.
        answer_format: Where the verifier looks.
        system: A system message, which may ask for a format too.
        asked: What the problems ask for as they are; they then need no template.
        inside: What they ask for without the published prompts that `bare` takes off.
        around: What the data's own messages before the problems ask for.

    Raises:
        ConfigError: The prompt asks for another format than the verifier looks for (H09).

    Example:
        >>> choose(None, "answer", None, None)[0] == TEMPLATES["dapo"]
        True
        >>> choose("r1", None, None, None)[1]
        'think_answer'
    """
    if answer_format not in (None, *_DEFAULTS):
        raise ConfigError(
            f"task.answer_format={answer_format}: not known; choose one of {', '.join(_DEFAULTS)}"
        )
    name = template
    if name is None:
        name = "none" if asked else _DEFAULTS[answer_format or "boxed"]
    chosen = TEMPLATES.get(name) or _own(name)
    formats = asked_formats(f"{system or ''}\n{chosen.text}") | around
    if asked and chosen == TEMPLATES["none"]:
        formats |= {asked}
    if answer_format is None:
        answer_format = _only(name, formats, around)
    if formats and answer_format not in formats:
        where = "the problems already ask" if name == "none" else f"task.template={name!r} asks"
        if around & formats:
            where = "the conversations ask"
        raise ConfigError(
            f"task.answer_format={answer_format}: {where} for {_listed(formats)}; set "
            f"answer_format to {_listed(formats)}, or template to {_DEFAULTS[answer_format]}"
        )
    if inside not in (None, answer_format):
        raise ConfigError(
            f"task.template={name!r}: the problems already ask for {inside}; set template to none "
            f"and answer_format to {inside}"
        )
    return chosen, answer_format


def warn_of_silence(
    template: str | None, chosen: Template, system: str | None, answer_format: AnswerFormat
) -> None:
    """Warns that a prompt asks for no answer format, though one is looked for (H09)."""
    if not asked_formats(f"{system or ''}\n{chosen.text}"):
        warnings.warn(
            f"task.template={template!r}: neither it nor the problems ask for an answer format, "
            f"and answers are looked for in answer_format={answer_format}; set template to "
            f"{_DEFAULTS[answer_format]}, or ask in task.system",
            ConfigWarning,
            stacklevel=3,
        )


def _own(text: str) -> Template:
    if "{question}" not in text:
        raise ConfigError(
            f"task.template={text!r}: neither one of {', '.join(TEMPLATES)} nor a text with "
            "{question} in it"
        )
    return Template(text)


def _only(name: str, formats: set[AnswerFormat], around: AbstractSet[AnswerFormat]) -> AnswerFormat:
    if len(formats) > 1:
        beside = " beside the data's own messages" if around else ""
        raise ConfigError(
            f"task.template={name!r}{beside}: asks for {_listed(formats)}; set task.answer_format "
            "to the one that counts"
        )
    return next(iter(formats), "boxed")


def _listed(formats: AbstractSet[AnswerFormat]) -> str:
    return " or ".join(sorted(formats))


def render(template: Template, question: str, system: str | None, history: Messages) -> Prompt:
    """A prompt without index and answer, as a plain text and as chat messages.

    Args:
        template: What stands around the problem.
        question: The problem.
        system: Replaces the data's own system message; an empty one removes it.
        history: Messages before the problem, a system message among them or not. Where there is
            no chat their contents stand before the problem.
    """
    own = [m["content"] for m in history if m["role"] == "system"]
    given = own if system is None else [system] if system else []
    turns = [m for m in history if m["role"] != "system"]
    # not str.format: problems are full of braces
    user = template.user.replace("{question}", question)
    plain = (template.plain or template.user).replace("{question}", question)
    text = "\n\n".join([*given, *(m["content"] for m in turns), plain])
    if template.system:
        given = [*given, template.system]
    head = [{"role": "system", "content": "\n\n".join(given)}] if given else []
    return Prompt(0, text, "", (*head, *turns, {"role": "user", "content": user}))
