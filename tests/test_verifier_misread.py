"""Answers that only look like the gold one, and must not be taken for it."""

import pytest

from lit_reason.verifier import Verifier, equivalent
from lit_reason.verifier.spelling import quick

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


@pytest.mark.parametrize(
    ("gold", "stated"),
    [
        ("15", "1\u2085"),
        ("12", "1\u2082"),
        ("5", "5\u2030"),
        ("5", "5\u2031"),
        ("5", "5\u2605"),
        ("5", "5-"),
        ("19", "19^"),
        ("81", "81/"),
        ("28", "28("),
        ("6", "6*"),
        ("70", "70?"),
        ("5", "5^*"),
        ("30", r"30^\foo"),
        ("30", r"30\foo"),
        (r"2\pi", r"2\pi\foo"),
        (r"2\pi", r"2\pi\text{ k}"),
        (r"30^\circ", "30'"),
        ("12", "1'2"),
        ("(C)", r"\text{(C)}7"),
        (r"5.4 \text{ cents}", r"5.4 \text{ cents}x"),
        ("5.4", r"5.4 \text{ cents}x"),
        ("65", r"\dim 6 5"),
        (r"\text{east}", r"\text{east}1"),
    ],
)
def test_what_is_no_formula_is_not_repaired(gold, stated):
    assert not equivalent(gold, stated)


@pytest.mark.parametrize(
    ("gold", "stated"),
    [
        ("1/2", r"{1 \over 2}"),
        (r"\frac{x+1}{2}", r"{x+1 \over 2}"),
        (r"\frac{1}{2}+\pi", r"{1 \over 2} + \pi"),
        ("x_1", "x\u2081"),
        (r"2\sqrt{3}", "2\u00b7\u221a3"),
        ("[3,4)", "[3, 4)"),
        (r"f'(2)", "f'(2)"),
    ],
)
def test_other_spellings_are_read(gold, stated):
    assert equivalent(gold, stated)


@pytest.mark.parametrize(
    ("mode", "gold", "text", "expected"),
    [
        ("think_answer", "7", r"<answer>\boxed{8} or \boxed{7}</answer>", False),
        ("answer", "5", r"Answer: \boxed{4} \boxed{5}", False),
        ("answer", "45", r"Answer: \boxed{4} \boxed{5}", False),
        ("answer", "4,5", r"Answer: \boxed{4} and \boxed{5}", True),
        ("answer", "5", r"Answer: $\boxed{\boxed{5}}$ = \boxed{5}", True),
        ("boxed", "5", r"\boxed{4}, no: \boxed{5}", True),
    ],
)
def test_several_boxes_in_one_answer_are_several_values(mode, gold, text, expected):
    verifier = Verifier(mode)
    assert verifier([gold], [text])[0].correct is expected
    verifier.close()


# fmt: off
DEGENERATE = ("x" * 3000, "-" * 3000 + "5", "|x|" * 1000, "x_{1}" * 600, "1," * 1500, "|x|" * 30,
              "x_{1}" * 50, "1," * 100, r"\{" + ",".join(map(str, range(900))) + r"\}")
# fmt: on


@pytest.mark.parametrize("stated", DEGENERATE)
def test_what_is_much_longer_than_the_gold_answer_costs_no_engine(stated):
    assert [quick(gold, stated) for gold in ("7", "1/3")] == [False, False]


@pytest.mark.parametrize(
    ("gold", "stated", "equal"),
    [
        ("(1,2)", "(1,3)", False),
        ("(1,2)", r"(1,\frac{4}{2})", True),
        ("(1,2)", "(1,2,3)", False),
        (r"\{1,2\}", r"\{1,3\}", False),
        (r"\{1,2\}", r"\{2,1\}", True),
        ("1, 2", "2, 3", False),
        ("1/3", "0.3335", False),
        ("1/3", "0.3333334", None),
        ("(1/3,2)", "(0.3333334,2)", None),
        ("100, 200", "100,201", None),
        ("1,2", "(1,2)", None),
        ("(1,2)", "(1,x)", None),
    ],
)
def test_lists_of_plain_numbers_are_told_apart_without_the_engine(gold, stated, equal):
    assert quick(gold, stated) is equal


@pytest.mark.parametrize(
    ("gold", "stated"),
    [
        ("5", r"\$5 in change"),
        ("78", "78 teachers at the school"),
        ("4", "4 times as large"),
        ("16", "16 fewer cookies"),
        ("16", "16 larger pizzas"),
        ("5", "5 mistakes"),
        ("9", "9 cm squared"),
        (r"9\pi", r"9\pi\text{ units squared}"),
        ("9", r"9\thinspace\text{cm}"),
        ("9", r"\large 9"),
        (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\[4pt]2\end{pmatrix}"),
        ("B", "(B) zero"),
        ("B", "(B) A larger sample"),
        ("B", "(B) I and II only"),
        ("B", "(B) P(A) = 1/2"),
    ],
)
def test_words_of_an_answer_that_change_nothing_are_passed_over(gold, stated):
    assert equivalent(gold, stated)


@pytest.mark.parametrize(
    ("gold", "stated"),
    [
        ("1,1,2", "1,2,2"),
        ("5", "5 grand"),
        ("5", "5 tenfold"),
        ("5", "5 extraneous"),
        ("5", r"5\ldots"),
        (r"\pi", r"\pi squared"),
        ("16", "16 fewer than Tom"),
    ],
)
def test_what_makes_another_answer_is_seen(gold, stated):
    assert not equivalent(gold, stated)
