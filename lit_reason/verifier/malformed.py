r"""Answers that are no formula, from which the engine would cut what it cannot read."""

from __future__ import annotations

import re
import unicodedata

from lit_reason.verifier.choices import is_choice
from lit_reason.verifier.words import set_as_words, unset

_UNFINISHED = re.compile(
    r"(?:[-*/^_(=?&]|\\(?:cdot|times|div)|\^\{?\*\}?|\.\.|\\[lc]?dots)$|^[/^)]"
)
_PRIMED = re.compile(r"\d\}?\s*(?:'|\u2032|\u2033|\^?\{?\\prime)")
_BRACKET = re.compile(r"\\[a-zA-Z]+\s*[()\[\]]|\\?[()\[\]]")
_SYMBOL = re.compile(r"(?<=[\d}])\s*([^\x00-\x7f])")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_GREEK = (
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi "
    "pi varpi rho varrho sigma varsigma tau upsilon phi varphi chi psi omega Gamma Delta Theta "
    "Lambda Xi Pi Sigma Upsilon Phi Psi Omega"
)
_FUNCTIONS = (
    "sin cos tan cot sec csc arcsin arccos arctan arccot arcsec arccsc sinh cosh tanh coth ln log "
    "lg exp min max gcd lcm det lim sup inf arg deg ker Re Im operatorname mathop"
)
_NOTATION = (
    "frac dfrac tfrac cfrac binom dbinom tbinom choose sqrt sum prod int iint oint lfloor rfloor "
    "lceil rceil lvert rvert lVert rVert vert Vert mid langle rangle lbrace rbrace lbrack rbrack "
    "overline underline bar hat vec dot ddot tilde widehat overrightarrow overset underset "
    "stackrel begin end infty circ degree prime angle triangle partial nabla ldots cdots dots "
    "dotsc dotsb vdots ddots emptyset varnothing backslash"
)
_RELATIONS = (
    "le leq leqslant ge geq geqslant lt gt ll gg ne neq not equiv cong approx simeq sim doteq "
    "propto in notin ni subset subseteq supset supseteq parallel perp cup cap setminus land lor "
    "lnot neg wedge vee oplus otimes to mapsto rightarrow Rightarrow leftarrow Leftarrow iff "
    "implies Longrightarrow longrightarrow therefore because colon mathbin mathrel forall exists "
    "cdot cdotp times div pm mp ast star bmod pmod mod pod bigcup bigcap"
)
_STYLES = (
    "text textbf textit textrm textnormal textsf texttt mathrm mathbf mathit mathsf mathtt mathbb "
    "mathcal mathfrak mbox hbox rm bf it left right big Big bigg Bigg bigl bigr Bigl Bigr biggl "
    "biggr Biggl Biggr middle displaystyle textstyle quad qquad hspace hfill phantom boxed fbox "
    "color textcolor bm boldsymbol pounds euro yen textdollar dollar euros cents nonumber "
    "limits nolimits tag thinspace medspace thickspace enspace space tiny small normalsize large "
    "Large huge textup textsc checkmark cent square ell"
)
_KNOWN = frozenset(" ".join((_GREEK, _FUNCTIONS, _NOTATION, _RELATIONS, _STYLES)).split())


def is_malformed(gold: str, stated: str) -> bool:
    r"""Whether `stated`, and not `gold`, holds what no formula does.

    Example:
        >>> is_malformed("5", "5-"), is_malformed("28", "28("), is_malformed("30", r"30^\foo")
        (True, True, True)
        >>> is_malformed("12", "1'2"), is_malformed("5", "5\u2605"), is_malformed("5", "(5)")
        (True, True, False)
    """
    if is_choice(gold):
        return False
    faults = (_UNFINISHED.search, _PRIMED.search, _is_unbalanced, _has_symbol)
    if any(has_fault(stated) and not has_fault(gold) for has_fault in faults):
        return True
    if set_as_words(gold) and re.search(r"\d", stated):
        return True
    named = set(_COMMAND.findall(unset(stated))) - set(_COMMAND.findall(gold))
    return not all(map(_is_known, named))


def _is_known(name: str) -> bool:
    r"""Also of two names without a space, as in `\pmsqrt(5)`."""
    splits = range(2, len(name) - 1)
    return name in _KNOWN or any({name[:i], name[i:]} <= _KNOWN for i in splits)


def _is_unbalanced(text: str) -> bool:
    found = [match[0][-1] for match in _BRACKET.finditer(text)]
    return sum(bracket in "([" for bracket in found) * 2 != len(found)


def _has_symbol(text: str) -> bool:
    return any(unicodedata.category(m[1]) in ("So", "Sm") for m in _SYMBOL.finditer(text)) or any(
        sign in text for sign in "\u2030\u2031"
    )
