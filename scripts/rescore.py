"""Judges the responses of an evaluation again, without a model, and prints its metrics.

python scripts/rescore.py RUN_DIR/predictions.jsonl
python scripts/rescore.py RUN_DIR/predictions_*.jsonl --answer_format answer --output changed.jsonl

The files are those that `python -m lit_reason predict` writes. Answers are extracted from the
responses and compared with the gold answers as the installed version does it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

from lit_reason.errors import ConfigError, in_one_line
from lit_reason.files import write_text
from lit_reason.prediction_files import Row, read_predictions, what_is_missing
from lit_reason.rescoring import changes, judge_again, measure


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
    sys.path.append(str(Path.cwd()))  # of the user's function; the folder of this script is there
    with in_one_line():
        check_output(given.output)
        rows = read_predictions(given.files)
        verdicts, classes, k = judge_again(rows, given.answer_format)
        values = measure(rows, verdicts, classes, k, given.pass_k)
        changed = changes(rows, verdicts)
        if given.output is not None:
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in changed]
            write_text(given.output, "".join(lines))
    if missing := what_is_missing(rows):
        print(f"warning: {missing}", file=sys.stderr)
    try:
        show(rows, values, changed, k)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_output(path: Path | None) -> None:
    """Refuses a file that cannot be written, before anything is computed."""
    if path is None:
        return
    other = path.exists() and not path.is_file()  # a device must not be replaced
    if other or not path.parent.is_dir():
        kind = "is a folder" if path.is_dir() else "is no file"
        what = kind if other else f"there is no folder {path.parent}"
        raise ConfigError(f"output={path}: {what}; give the path of a file")


def show(rows: list[Row], values: dict[str, float], changed: list[Row], k: int) -> None:
    """Prints metrics, intervals, and how many verdicts changed."""
    print(f"{len(rows) // k} problems, {k} responses each")
    for name, value in values.items():
        if not name.endswith(("_low", "_high")):
            low, high = values[f"{name}_low"], values[f"{name}_high"]
            print(f"{name:24} {value:10.4f}   [{low:.4f}, {high:.4f}]")
    print(f"{len(changed)} of {len(rows)} verdicts changed")
    kinds = Counter((row["status_before"], row["status"]) for row in changed)
    for (before, after), count in kinds.most_common():
        print(f"  {before} -> {after}: {count}")


if __name__ == "__main__":
    main()
