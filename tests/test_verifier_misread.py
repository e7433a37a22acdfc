"""Answers that only look like the gold one, and must not be taken for it."""

import pytest

from lit_reason.verifier import equivalent

# fmt: off
BEHIND = (
    "at least", "at most", "at minimum", "as a lower bound", "exceeds", "is excluded", "rejected",
    "fails", "too small", "too few", "otherwise", "eighths", "ninths", "sixteenths", "halved",
    "multiplied", "root", "quadrillion", "myriad", "and change", "is invalid", "or less", "isn't",
    "thousand", "dozen", "minus one", "squared", "divided by two", "is incorrect", "per mille less",
)
# fmt: on


@pytest.mark.parametrize(
    "gold", ["5", r"\frac{1}{2}", r"\pi", r"2\sqrt5", r"\frac{\pi}{2}", "x^2+1"]
)
def test_words_that_change_what_they_stand_behind_are_no_units(gold):
    texts = [form.format(gold, w) for w in BEHIND for form in ("{} {}", r"{}\text{{ {}}}")]
    assert [text for text in texts if equivalent(gold, text)] == []
    for unit in ("units", "square inches", "hours a day"):
        assert equivalent(gold, rf"{gold}\text{{ {unit}}}")


@pytest.mark.parametrize(
    ("gold", "stated"),
    [
        ("5", "5 more apples"),
        ("5", "5 is the answer"),
        ("2", "2 times as many"),
        ("5", "The minimum is 5"),
        ("18%", r"18\text{ percent}"),
        (r"2\sqrt5", r"\text{minimum value} = 2\sqrt5"),
        ("E", "(E) none of the above"),
        ("B", "B) 12"),
        ("B", r"\textbf{(B)}\ f(a) = 3"),
    ],
)
def test_words_that_change_nothing_are_read_past(gold, stated):
    assert equivalent(gold, stated)


@pytest.mark.parametrize(
    "stated",
    [
        "(B) 12, (C) 13",
        "B) 12 C) 13",
        "B. 12 C. 13",
        r"\textbf{(B)} 12 \textbf{(C)} 13",
        "(B) 12 (A) 13 (C) 3",
        "B=C",
        "C=B",
        "(B) is wrong",
        "(B) is not right",
        "(B) false",
        "not (B)",
        "(B)7",
    ],
)
def test_an_answer_that_lists_choices_or_denies_one_chooses_none(stated):
    assert not equivalent("B", stated)
    assert not equivalent("C", stated)
