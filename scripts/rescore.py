"""Judges the responses of an evaluation again, without a model, and prints its metrics.

python scripts/rescore.py RUN_DIR/predictions.jsonl
python scripts/rescore.py RUN_DIR/predictions_*.jsonl --answer_format answer --output changed.jsonl

The files are those that `python -m lit_reason predict` writes. Answers are extracted from the
responses and compared with the gold answers as the installed version does it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from lit_reason.errors import ConfigError
from lit_reason.rescoring import changes, judge_again, measure, read_predictions


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--answer_format",
        help="where a response states its answer: boxed, answer, gsm8k, think_answer, plan_count, "
        "or a function (golds, responses) -> verdicts; default: as the file says",
    )
    parser.add_argument(
        "--pass_k", nargs="+", type=int, help="the k of pass@k; default: powers of two"
    )
    parser.add_argument("--output", type=Path, help="file for the rows whose verdict changed")
    given = parser.parse_args(args)
    try:
        rows = read_predictions(given.files)
        verdicts, classes, k = judge_again(rows, given.answer_format)
        values = measure(rows, verdicts, classes, k, given.pass_k)
    except ConfigError as error:
        parser.exit(2, f"error: {error}\n")
    print(f"{len(rows) // k} problems, {k} responses each")
    for name, value in values.items():
        if not name.endswith(("_low", "_high")):
            low, high = values[f"{name}_low"], values[f"{name}_high"]
            print(f"{name:24} {value:10.4f}   [{low:.4f}, {high:.4f}]")
    changed = changes(rows, verdicts)
    print(f"{len(changed)} of {len(rows)} verdicts changed")
    kinds = Counter((row["status_before"], row["status"]) for row in changed)
    for (before, after), count in kinds.most_common():
        print(f"  {before} -> {after}: {count}")
    if given.output is not None:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in changed]
        given.output.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
