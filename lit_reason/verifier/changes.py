"""Words that deny a value, bound it, or make another of it: one list for numbers and terms."""

from __future__ import annotations

import re

from lit_reason.verifier.words import NUMBER_WORDS, spaced

_FRACTIONS = (
    r"half|halves|thirds?|quarters?|\w*(?:four|fif|six|seven|eigh|nin|ten|elev|twelf|teen|tie"
    r"|hundred|thousand|illion)ths?"
)
_MAGNITUDES = (
    r"hundreds?|thousands?|\w+illions?|dozens?|lakhs?|crores?|score|gross|tens|myriads?|googol"
    r"|grand|thou|mill?|mln|bil|bln|\w+fold|twice|thrice"
)
_OPERATIONS = (
    "plus|minus|divided|over|squared|cubed|factorial|choose|mod|modulo"
    "|(?:halv|doubl|tripl|quadrupl|multipli|rais|reduc|increas|decreas|subtract|negat|invert)ed"
)
_DENIALS = (
    "not|nor|never|neither|none|nothing|cannot|but|other|wrong|incorrect|false|impossible|if"
    "|unless|maybe|perhaps|possibly|another|something|else|than"
)
# wherever they stand
CHANGING = f"{_DENIALS}|{_OPERATIONS}|{_MAGNITUDES}|{_FRACTIONS}|{NUMBER_WORDS}"
_BOUNDS = (
    r"least|most|minimum|maximum|minimal|maximal|less|lesser|few|fewer|lower|upper|above|below"
    r"|under|beneath|beyond|exceed\w*|bound\w*|limits?|ceiling|threshold|onwards?|upwards?"
    r"|downwards?|higher|greater|larger|bigger|smaller|shy|too|tops|versus|vs"
)
_REFUSALS = (
    r"exclu\w+|reject\w*|fails?|failing|omit\w*|remov\w+|discard\w*|dis(?:allow|pro|qualif|agree)\w*"
    r"|forbid\w*|prohibit\w*|eliminat\w+|contradict\w*|violat\w+|refut\w+|den(?:y|ie[sd])|doubt\w*"
    r"|in(?:valid|accurate|adequate|sufficient|admissible|feasible|consistent|eligible)\w*"
    r"|un(?:true|likely|fit|acceptable|certain|known|sure|defined|reachable|suitable|sound)"
    r"|im(?:proper|plausible)|wrongly|falsely|mistaken(?:ly)?|erroneous|invalidated|extraneous|spurious|bogus|nonsense"
    r"|otherwise|except\w*|without|instead|rather|hardly|barely|ruled|void|scrapped|nope|nah"
)
# behind a value; before it they may be its name, as in "the minimum is 5"
CHANGING_BEHIND = (
    rf"{CHANGING}|{_BOUNDS}|{_REFUSALS}|root|power|reciprocal|inverse|opposite|remainder"
    "|percent|permille|permil"
)

_COMMAND = re.compile(r"\\[a-zA-Z]+")
_VALUE = re.compile(r"\d|\\[a-zA-Z]|\^")
_WORD = re.compile(r"[^\W\d_]{2,}")
_CHANGED = re.compile(CHANGING)
_CHANGED_BEHIND = re.compile(CHANGING_BEHIND)
_THOUSANDS = re.compile(r"\\(?:text|textbf|textrm|mathrm|mbox)\{ *[kKMB] *\}")
_OR_BOUND = re.compile(
    r"\bor (?:more|less|fewer|greater|higher|above|below|no)\b|n't\b|\band change\b"
)
# of what is counted: "16 fewer cookies", "9 cm squared"
_OF_UNIT = re.compile(
    r"\b(?:fewer|less|larger|bigger|smaller|higher|greater) (?!than\b)(?=[^\W\d_]{3})"
    r"|(?<=[^\W\d_]{2}) (?:squared|cubed)\b"
)


def bare_units(text: str) -> str:
    """`text` without words that change a unit, and not the number before it.

    Example:
        >>> bare_units("16 fewer cookies"), bare_units("9 cm squared"), bare_units("16 fewer")
        ('16 cookies', '9 cm', '16 fewer')
    """
    return _OF_UNIT.sub("", text)


def is_changed(gold: str, stated: str) -> bool:
    r"""Whether words in `stated` that `gold` lacks make another value of what they stand beside.

    Example:
        >>> is_changed("5", "5 at least"), is_changed(r"\pi", r"\pi\text{ thousand}")
        (True, True)
        >>> is_changed("5", "the minimum is 5"), is_changed(r"\pi", r"\pi\text{ units}")
        (False, False)
    """
    if _THOUSANDS.search(stated) and not _THOUSANDS.search(gold):
        return True
    text = spaced(stated).lower().rpartition("=")[2]
    words = set(_WORD.findall(bare_units(_COMMAND.sub(" ", text))))
    if not words:
        return False
    value = _VALUE.search(text)
    behind = bare_units(_COMMAND.sub(" ", text[value.start() :] if value else text))
    known = set(_WORD.findall(spaced(gold).lower()))
    return (
        any(map(_CHANGED.fullmatch, words - known))
        or any(map(_CHANGED_BEHIND.fullmatch, set(_WORD.findall(behind)) - known))
        or (_OR_BOUND.search(text) is not None and not _OR_BOUND.search(spaced(gold).lower()))
    )
