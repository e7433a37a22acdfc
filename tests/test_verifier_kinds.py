"""Kinds of answers that are easily misread: what equals a gold answer, and what does not."""

import json
import random
import re
import time
from pathlib import Path

import pytest

from lit_reason.verifier import equivalent
from lit_reason.verifier.spelling import MAX_LENGTH, quick

SHARED = Path(__file__).parents[2] / "shared" / "data"
ROOTS = r"\frac{3\pm\sqrt5}{2}"
WIDE = r"(-\infty,2)\cup(3,\infty)"
COLUMN = r"\begin{pmatrix} -1/3 \\ 2 \end{pmatrix}"

# kind: (gold, equal answers, others)
# fmt: off
KINDS = {
    "both signs": [
        (ROOTS, [r"\frac{3+\sqrt5}{2},\frac{3-\sqrt5}{2}", r"\frac32\pm\frac{\sqrt5}{2}",
                 f"x={ROOTS}"],
         [r"\frac{3+\sqrt5}{2}", r"\frac{3-\sqrt5}{2}", r"\frac{3\pm\sqrt6}{2}", r"\frac{3}{2}"]),
        (r"\frac{3+\sqrt5}{2}, \frac{3-\sqrt5}{2}", [ROOTS], [r"\frac{3+\sqrt5}{2}"]),
        (r"\frac{3+\sqrt5}{2}", [], [ROOTS]),
        (r"\{1\pm\sqrt5,-2\}", [r"-2, 1+\sqrt5, 1-\sqrt5"], [r"-2, 1+\sqrt5"]),
        (r"(\pm 1, 2)", ["(1,2),(-1,2)"], ["(1,2)"]),
        (r"x=\pm 3", ["x=3 or x=-3", r"\pm3", "-3, 3"], ["3", "x=3"]),
        ("5", [], [r"5\pm 1", "6\u00b11"]),
    ],
    "ranges": [
        ("10", ["$10", r"\$10", "$10.00", "10 USD"], [
            "$10-$20", r"\$10-\$20", "$10 - $20", "$10\u2013$20", "\u20ac10-\u20ac20", "10-20",
            "10 to 20", "[10,20]", "(10,20)", "10<x<20", "between 10 and 20", r"10\sim 20",
            "10~20"]),
        ("20", ["$25 - $5 = $20"], ["$10-$20", "from 10 to 20"]),
    ],
    "bases": [
        ("134", ["134_{10}"], ["134_5", "134_{5}", r"134\text{ base }5", r"134_{\text{five}}"]),
        ("4210_{5}", ["4210_5", r"4210\text{ base }5", "4210 in base 5", r"(4210)_5", "4210",
                      r"4210_{\text{five}}", "x = 4210_5"],
         ["4210_7", "4211_5", r"4210\text{ base }7", "(4210)_6", "555"]),
        ("101_2, 110_2", ["101_2, 110_2"], ["101_3, 110_3"]),
        ("1A_{16}", ["1a_{16}"], ["1B_{16}"]),
    ],
    "words": [
        (r"\text{east}", ["East", r"\textbf{east}", "**east**"], ["seat", r"\text{seat}", "west"]),
        ("listen", ["Listen."], ["silent"]),
        ("no", ["No."], ["on", "yes"]),
        ("cat, dog", ["dog, cat"], ["act, god"]),
        ("abc", [r"a\cdot b\cdot c"], ["cab"]),
        ("xyz", ["zyx"], ["xy"]),
        (r"\text{Evelyn}", ["evelyn"], ["Not Evelyn", "Evelyn or Carla", "Evenly"]),
    ],
    "shapes": [
        ("2,3", ["3,2", r"\{2,3\}", "x=2, x=3", "x_1=3, x_2=2", "2 and 3"],
         ["2<x<3", "[2,3]", r"x\in(2,3)", r"(2,\infty)", "2,3,4", "2"]),
        ("2<x<3", ["(2,3)"], ["2,3"]),
        (r"\{1,2\}", ["1,2"], ["1<x<2", "[1,2]", "(1,2)"]),
        ("(1,2)", ["x=1,y=2", "y=2,x=1", "x=1 and y=2", "(x,y)=(1,2)", "P(1,2)", "P = (1,2)",
                   r"\langle 1,2\rangle"],
         ["y=1,x=2", "2,1", "P(2,1)", "x=1", "(1,2,3)"]),
        ("3.4", [], [r"\langle 3,4\rangle", "3,4"]),
        ("1", [r"\{1\}"], ["1,1", "x=1, y=1"]),
        ("(3,4]", [r"3<x\le 4", r"x\in(3,4]"], ["[3,4)", "(3,4)", "3,4"]),
        (WIDE, ["x<2 or x>3"], ["2<x<3", r"(-\infty,2)"]),
        (r"(2,\infty)", ["x>2", "(2, infinity)"], [r"(2,\infty]", r"[2,\infty)", "x<2"]),
        (COLUMN, [r"\mathbf{v} = \begin{bmatrix}-\frac13\\2\end{bmatrix}"], ["-1/3,2", "(-1/3,2)"]),
    ],
    "several values": [
        ("5", [r"5\quad", r"5\quad\text{cm}"], [
            r"a=5\quad b=6", r"a=6\quad b=5", r"5\quad 6", r"5 \sim 6", r"6 \sim 5", "5 or none",
            r"5\text{ or none}", "5 or thirty-five", "5, six", "5 unless odd", r"5\;6",
            "5 is wrong",
            r"x \equiv 5 \pmod 8"]),
        ("34", [], [r"\[34\] or \[35\]", r"\[35\] or \[34\]", "34 or neither"]),
        ("56", [r"56"], [r"5\;6", r"5\,6"]),
        ("a=5,b=6", [r"a=5\quad b=6"], [r"a=6\quad b=5"]),
        ("5,6", [r"5\quad 6", r"x=5\quad\text{or}\quad x=6"], [r"5\quad 7"]),
    ],
    "equations": [
        ("6", ["x=6", "6=x", "f(x)=6", "f'(2)=6", "f(g(2)) = 6", "a_{10}=6", "AB=6", "|AB|=6",
                 "[ABC]=6",
               r"\angle A=6^\circ", r"\text{Area}=6", "Total = 6", "the answer = 6",
               r"P(A \cap B)=6",
               r"\frac{dy}{dx} = 6", "2+4=6", "3!=6", r"\binom{4}{2}=6", "x = 2+4 = 6",
               r"A = lw = 6"],
         ["2x=6", "x+y=6", "xy=6", "x^2=6", r"\frac{x}{2}=6", "-x=6", r"\sqrt{x}=6", "|x|=6",
          "6=2x",
          "x(x+1)=6", "2+5=6", "7=6", "x=5=6", "5x=3y=6", r"2x \approx 6", "x>6", "x!=6"]),
        ("x=6", ["6", "x = 12/2 = 6"], ["2x=12", "y=6"]),
        ("1,2", ["x=1,2", "x=1, x=2"], ["2x=1, x=2"]),
        (r"\frac12", ["P(X=1) = 1/2", r"|\vec{v}| = 1/2", r"\|v\| = 1/2", r"\mathbb{E}[X]=0.5"],
         ["2P(X=1) = 1/2", "2|v| = 1/2"]),
        (r"9\pi", [r"A=\pi r^2=9\pi"], [r"2x=9\pi"]),
        ("x^2", ["f(x)=x^2", "y=x^2"], ["y^2=x^2", "x^2=9"]),
        ("y=2x+3", ["2x+3", "2x-y+3=0"], ["2y=x+3"]),
        ("4210", ["x = 4,210", r"N = 4{,}210", r"4, \! 210", "x = 4 210"], ["x = 4,21"]),
    ],
    "units": [
        ("18", ["18 in", "18in", "18 in.", "18cm", "18 cm\u00b2", "18cm\u00b2", r"18\text{ in}^2",
                 "18km/h",
                "$18/hour", r"\$18/hour", "18/hour", "18-inch", "18 (apples)", "18 J",
                "18 hours/day"],
         ["18x", "18m", "18k", "18/x", "18/m", "18/2", "18-half", "18 in 20", "18 ft 6 in",
          "18/two"]),
        ("18 in", ["18"], ["19"]),
        (r"6\pi", [r"6\pi cm^2", r"6\pi\text{ cm}^2"], [r"5\pi cm^2"]),
        (r"2\pi r h", [r"2\pi hr"], [r"2\pi r"]),
    ],
    "without TeX": [
        (r"2\pi", ["2pi", "2*pi", "2 pi"], ["2pie", "2ip"]),
        (r"\ln 2", ["ln 2", "ln(2)"], ["ln 3"]),
        ("0.0015", ["1.5*10^-3", "1.5 x 10^-3", "1.5e-3"], ["1.5*10^3", "1.5*10^-4"]),
        (r"\frac{\sqrt{3}}{2}", ["sqrt(3)/2", "sqrt3/2", "(sqrt(3))/(2)"], ["sqrt(3/2)"]),
        (r"\sqrt{(x+1)(x+2)}", ["sqrt((x+1)(x+2))"], ["sqrt(x+1)(x+2)"]),
        (r"e^{-x}", ["e^-x", "exp(-x)"], ["e^x"]),
        ("x^2", ["x**2"], ["x*2"]),
        (r"|x|", ["abs(x)"], ["x"]),
    ],
    "sentences": [
        ("34", ["Tom has 34 apples.", "Total: 34", "about 34", r"\approx 34", "The answer is $34$",
                r"\text{Tom has }34\text{ apples}", "They earned $34", "So 34"],
         ["Tom has 35 apples", "34 apples and 2 pears", "not 34", "at least 34", "twice 34",
          "Day 3: 34",
          "half of 34", "any number but 34", "34 is wrong", "the square root of 34", "minus 34"]),
        ("1/2", ["The probability is 1/2", "The chance is 50%"], ["The probability is 2"]),
    ],
    "ratios, times and dates": [
        ("3:4", ["3 to 4", "3{:}4", r"3\text{ to }4", r"3\colon 4", "3/4", "6:8", "3\u22364"],
         ["4:3", "3 to 5", "34", "3"]),
        ("3", [], ["3:4", "3 to 4"]),
        ("3:4:5", ["3 : 4 : 5", "6:8:10"], ["3:4", "5:4:3", "3:20"]),
        ("10 a.m.", ["10 AM", "10:00 a.m.", r"10\text{ a.m.}"], ["10 p.m.", "10:30 a.m.",
                 "11 a.m."]),
        ("7/4/2020", ["7/4/2020"], ["4/7/2020", "7/8080"]),
        ("2020-07-04", ["2020-07-04"], ["2009", "2020-07-05"]),
    ],
    "magnitudes and percentages": [
        ("12000000", ["12 million", r"\$12\text{ million}", "12 million dollars"], ["12",
                 "12 billion"]),
        ("12", [], ["12 million", "12 thousand"]),
        ("1500", ["1.5 thousand"], ["1.5 million"]),
        ("24", ["2 dozen eggs"], ["2"]),
        (r"33.\overline{3}\%", [r"33\frac13\%", r"\frac{100}{3}\%", r"\frac13"], ["33", r"33.3\%"]),
        (r"\frac13", [r"33.\overline{3}\%", r"33\frac13\%"], [r"3\%"]),
    ],
}
# fmt: on


@pytest.mark.parametrize("kind", KINDS)
def test_answers_of_a_kind_are_told_apart(kind):
    mistakes = [
        (gold, text, expected)
        for gold, equal, other in KINDS[kind]
        for expected, texts in ((True, [gold, *equal]), (False, other))
        for text in texts
        if equivalent(gold, text) is not expected
    ]
    assert mistakes == []


PIECES = [r"\pm ", r"a=5\quad ", "sqrt(", "in ", "cm", "/hour", "and ", "Tom ", "3 to ", "1_", "|A"]
PIECES += ["f(", "1**", "1 million ", "-", "$", "(1,", "P(", r"\langle ", "x=", "%", r"1\,", "east"]


@pytest.mark.parametrize("head", ["", "18 ", "x=", "(1,", "Tom 1 "])
def test_repeated_pieces_hold_nothing_up(head):
    """There is no time limit where answers are told apart without the engine."""
    for piece in PIECES:
        text = (head + piece * MAX_LENGTH)[: MAX_LENGTH - 1] + "!"
        for gold in ("7", "(1,2)", "3:4", r"\text{east}"):
            started = time.process_time()
            quick(gold, text)
            assert time.process_time() - started < 1, piece


# --- the answers of MATH-500 ----------------------------------------------------------------------

SPELLINGS = {
    "frac": lambda x: x.replace(r"\frac", r"\dfrac"),
    "sizes": lambda x: x.replace("(", r"\left(").replace(")", r"\right)"),
    "plain sizes": lambda x: x.replace(r"\left", "").replace(r"\right", ""),
    "formula": lambda x: f"${x}$.",
    "display": lambda x: rf"\[ {x} \]",
    "bold": lambda x: f"**{x}**",
    "boxed": lambda x: rf"\boxed{{{x}}}",
    "name": lambda x: x if re.search(r"=|\\in|text\{[^ d]|\\\$", x) else f"x = {x}",
    "ASCII": lambda x: re.sub(r"\\sqrt\{(\d+)\}", r"sqrt(\1)", x).replace(r"\pi", "pi"),
    "sentence": lambda x: f"The answer is {x}." if re.fullmatch(r"-?\d+", x) else x,
}


@pytest.fixture(scope="module")
def golds():
    path = SHARED / "math500.json"
    if not path.exists():
        pytest.skip("math500.json does not lie beside the repository")
    return sorted({row["final_answer"] for row in json.loads(path.read_text())})


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_gold_answer_equals_itself_in_another_spelling(golds, spelling):
    respelled = [SPELLINGS[spelling](gold) for gold in golds]
    pairs = zip(golds, respelled, strict=True)
    assert [pair for pair in pairs if not equivalent(*pair)] == []


def test_a_gold_answer_equals_no_other(golds):
    terms = [gold for gold in golds if not re.fullmatch(r"-?\d+", gold)]
    rng = random.Random(0)
    pairs = [rng.sample(terms, 2) for _ in range(300)] + [rng.sample(golds, 2) for _ in range(300)]
    equal = [sorted(pair) for pair in pairs if equivalent(*pair)]
    assert [pair for pair in equal if pair != ["-2,1", "1,-2"]] == []
