"""The page of one or several runs: the picture, a table before and after, and the responses."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from lit_reason.errors import visible
from lit_reason.files import write_text
from lit_reason.report.history import HELD_OUT, Run

CSS = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff;
       max-width: 1080px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
img { width: 100%; height: auto; }
table { border-collapse: collapse; } caption { text-align: left; color: #555; }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid #ddd; text-align: right; }
th:first-child, td:first-child { text-align: left; font-weight: normal; }
summary { cursor: pointer; margin: .8rem 0; font-weight: 600; }
article { border: 1px solid #ddd; border-left-width: 6px; padding: .5rem .9rem; margin: .7rem 0; }
article.right { border-left-color: #0072B2; }
article.wrong { border-left-color: #D55E00; border-left-style: double; }
article header { display: flex; gap: 1.2rem; flex-wrap: wrap; }
.verdict { font-weight: 700; }
.right .verdict { color: #005a8e; } .wrong .verdict { color: #a84a00; }
.part { color: #666; font-size: .85rem; margin: .4rem 0 0; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .1rem 0 .3rem; max-height: 22em;
      overflow-y: auto; }
"""


def write_page(runs: Sequence[Run], picture: Path, path: Path) -> None:
    """Writes a page that needs no other file.

    Args:
        runs: As they were drawn.
        picture: The PNG that `draw` wrote; it becomes part of the page.
        path: File to write.
    """
    title = ", ".join(run.name for run in runs)
    parts = [
        image(picture, f"Training curves of {title}"),
        "<h2>Held-out problems</h2>",
        *(_evaluations(run) for run in runs),
        "<h2>Responses</h2>",
        *(_responses(run, named=len(runs) > 1) for run in runs),
    ]
    write_html(path, title, parts)


def image(picture: Path, says: str) -> str:
    """A picture as part of a page.

    Args:
        picture: A PNG.
        says: What it shows, as plain text.
    """
    data = base64.b64encode(picture.read_bytes()).decode("ascii")
    return f'<img alt="{plain(says)}" src="data:image/png;base64,{data}">'


def plain(text: str) -> str:
    """A text as HTML shows it, without what would act on the page or turn its order around."""
    return escape(visible(text))


def write_html(path: Path, title: str, parts: Sequence[str]) -> None:
    """Writes a page.

    Args:
        path: File to write.
        title: As plain text; also the heading.
        parts: HTML, in which what others wrote is escaped.
    """
    title, body = plain(title), "\n".join(parts)
    write_text(
        path,
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width">\n<style>{CSS}</style></head>\n'
        f"<body>\n<h1>{title}</h1>\n{body}\n</body></html>\n",
    )


def _evaluations(run: Run) -> str:
    """The first and the last value of everything measured on held-out problems."""
    measured = {
        k: s
        for k, s in run.series.items()
        if k.startswith(HELD_OUT) and not k.endswith(("_low", "_high"))
    }
    if not measured:
        return f"<p>{plain(run.name)}: no evaluation on held-out problems yet.</p>"
    rows = []
    for key, series in sorted(measured.items()):
        first, last = series.values[0], series.values[-1]
        cells = (f"{first:.3f}", f"{last:.3f}", f"{last - first:+z.3f}")
        name = plain(key.removeprefix(HELD_OUT))
        rows.append(f"<tr><td>{name}</td>{''.join(f'<td>{c}</td>' for c in cells)}</tr>")
    places = next(iter(measured.values())).rollouts
    before, after = (f"rollout {place:g}" for place in (places[0], places[-1]))
    return (
        f"<table><caption>{plain(run.name)}</caption><thead><tr><th></th>"
        f"<th>before<br><small>{before}</small></th><th>after<br><small>{after}</small></th>"
        f"<th>change</th></tr></thead><tbody>{''.join(rows)}</tbody></table>"
    )


def _responses(run: Run, named: bool) -> str:
    """The samples, those of the newest rollout first and unfolded."""
    heading = f"<h3>{plain(run.name)}</h3>" if named else ""
    if not run.samples:
        return (
            f"{heading}<p>{plain(run.name)}: no samples; the callback SampleTable writes them.</p>"
        )
    tables: dict[str, list[dict[str, Any]]] = {}
    for sample in run.samples:
        tables.setdefault(str(sample.get("rollout")), []).append(sample)
    parts = [
        f"<details{' open' if i == 0 else ''}><summary>Rollout {plain(rollout)}: "
        f"{sum(_is_right(s) for s in samples)} of {len(samples)} right</summary>"
        f"{''.join(_response(s) for s in samples)}</details>"
        for i, (rollout, samples) in enumerate(reversed(tables.items()))
    ]
    return heading + "\n".join(parts)


def _response(sample: dict[str, Any]) -> str:
    right = _is_right(sample)
    facts = [f"reward {sample.get('reward', '?')}", f"{sample.get('length', '?')} tokens"]
    if sample.get("truncated"):
        facts.append("cut off at the token limit")
    return (
        f'<article class="{"right" if right else "wrong"}"><header>'
        f'<span class="verdict">{"✓ right" if right else "✗ wrong"}</span>'
        f"{''.join(f'<span>{plain(fact)}</span>' for fact in facts)}</header>"
        f"{_text('prompt', sample)}{_text('response', sample)}</article>"
    )


def _text(part: str, sample: dict[str, Any]) -> str:
    return f'<p class="part">{part}</p><pre>{plain(str(sample.get(part, "")))}</pre>'


def _is_right(sample: dict[str, Any]) -> bool:
    return sample.get("correct") is True
