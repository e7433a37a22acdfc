"""Held-out problems that are also training problems."""

from __future__ import annotations

import re
import unicodedata
import warnings

from lit_reason.batch import Prompt
from lit_reason.errors import ConfigError, ConfigWarning
from lit_reason.log import log
from lit_reason.tasks import Task
from lit_reason.tasks.templates import bare

Encoded = list[tuple[Prompt, list[int]]]

_SAME = str.maketrans(
    {
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212", "-"),
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u00ab\u00bb", '"'),
    }
)
_TYPED_DASH = re.compile(r"(?<=[^\W\d_]{2})(\s?)-{2,3}(?=\s?[^\W\d_]{2})")
_TYPED_QUOTES = re.compile(r"``([^`']*)''")
_SPACING = re.compile(r"\\[,;:!> ]|\\(?:quad|qquad|left|right|displaystyle)(?![a-zA-Z])|[~$]")
_THIN = re.compile(r"(?<=\d)(?:\\[,!]|\{,\}|,\\!)(?=\d{3}(?!\d))")
# inside brackets a comma may separate arguments
_GROUPED = re.compile(r"(?<![\d.,(\[{])\d{1,3}(?:,\d{3})+(?![\d,)\]}])")
# a point before a digit, and what stands between digits, is part of a number, a ratio or a list
_PUNCTUATION = re.compile(r"(?<=\w)(?<!\d)\.|(?<!\w)\.(?!\d)|(?<!\d)[,:;]|(?<=\d)[.,:;](?!\s*\d)")
_BOLD = re.compile(r"(?<![\w)])\*\*(?=\S)(.+?)(?<=\S)\*\*(?![\w(])", re.DOTALL)
_LABEL = re.compile(r"\A\s*#*\s*(?:question|problem|q)\s*:\s*", re.IGNORECASE)
_CUE = re.compile(r"\s*\n\s*(?:answer|solution|a)\s*:\s*\Z", re.IGNORECASE)
_RAISED = {"<super>": "^", "<sub>": "_"}


def normalise(text: str) -> str:
    r"""A spelling in which copies of a problem are equal.

    Published prompts around it, the label `Question:`, bold type,
    case, white space, punctuation, typographic variants and LaTeX's spacing are dropped; digits,
    letters and mathematical signs stay, and so does what makes two numbers of a row of digits.
    Problems that differ in the case of a variable alone count as copies: that costs a training
    problem, and the case of the rest may have changed with it.

    Example:
        >>> normalise("What is $1\\,+\\,1$ ?") == normalise("what is 1+1")
        True
        >>> normalise("What is 1+1?") == normalise("What is 1-1?")
        False
        >>> normalise("A TRUCK\u2019S LOAD \u2014 OF R") == normalise("A truck's load -- of r")
        True
        >>> normalise("3\u00b2") == normalise("32"), normalise("1 2 3") == normalise("12 3")
        (False, False)
        >>> normalise("**Question:** 1+1?\nLet's think step by step.") == normalise("1+1?")
        True
    """
    text = unlabelled(text)
    text = _TYPED_QUOTES.sub(r'"\1"', _TYPED_DASH.sub(r"\1-", text.casefold()))
    text = "".join(map(_marked, _SPACING.sub(" ", _THIN.sub("", text))))
    text = unicodedata.normalize("NFKC", text.translate(_SAME)).translate(_SAME).casefold()
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = _GROUPED.sub(lambda match: match[0].replace(",", ""), text)
    text = re.sub(r"(?<=\d)\s+(?=\d)", "_", _PUNCTUATION.sub("", text).strip())
    return re.sub(r"[\s?\"]+", "", text)


def unlabelled(text: str) -> str:
    r"""A problem without requests, labels and bold type around it.

    Example:
        >>> unlabelled("Question: **What is 2**3?**\nAnswer: Let's think step by step.")
        'What is 2**3?'
    """
    text = bare(_CUE.sub("", bare(text)))
    return _LABEL.sub("", _BOLD.sub(r"\1", text))


def _marked(character: str) -> str:
    """A raised or lowered character with a sign before it, which its plain form would lose."""
    return _RAISED.get(unicodedata.decomposition(character).split(" ")[0], "") + character


def without_overlap(
    training: Encoded, held_out: Encoded, task: Task, val_task: Task, remove: bool
) -> Encoded:
    """The training problems that are not held out too; reports how many were.

    Args:
        training: Training problems.
        held_out: Held-out problems.
        task: The training task.
        val_task: The held-out task; the training task itself has no held-out problems.
        remove: Leave such problems out of training; otherwise only warn.

    Raises:
        ConfigError: Every training problem is held out too.
    """
    if val_task is task:
        return training
    texts = [normalise(val_task.question(p)) for p, _ in held_out]
    known = set(texts)
    clean, leaked = [], set()
    for prompt, ids in training:
        text = normalise(task.question(prompt))
        if text in known:
            leaked.add(text)
        else:
            clean.append((prompt, ids))
    if not leaked:
        return training
    count = sum(text in leaked for text in texts)
    found = (
        f"{count} of {len(texts)} problems of data.val_task ({count / len(texts):.1%}) are also in "
        "data.task"
    )
    if not remove:
        warnings.warn(
            f"data.remove_overlap=false: {found}, so they are not held out; "
            "set it to true, or choose another split",
            ConfigWarning,
            stacklevel=2,
        )
        return training
    if not clean:
        raise ConfigError(
            f"data.task: every problem is also in data.val_task ({count} of {len(texts)} there), "
            "so none is left to train on; choose another split, or set data.remove_overlap to false"
        )
    removed = len(training) - len(clean)
    log(
        f"{found}; {removed} of {len(training)} training problems ({removed / len(training):.1%}) "
        "are left out (data.remove_overlap)"
    )
    return clean
