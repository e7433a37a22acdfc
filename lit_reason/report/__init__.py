"""What comes around a run: pictures and pages of its files, and ablations of many runs.

Nothing here imports the training code: `history` reads the files of a run, `plot` and `page` show
them; `sweep` reads a W&B sweep file, `ablation` runs its points as subprocesses (`child`) and
`table` compares them. The commands are in `scripts/`.
"""
