"""The documents: their code runs, and their tables are those of the code."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from grpojax.config import RunConfig
from grpojax.settings import allowed, settings_of
from grpojax.variants import VARIANTS, VariantSettings

DOCS = Path(__file__).parents[1] / "docs"


def variants_table() -> str:
    """The table of variants in README.md."""
    rows = [f"| `{name}` | {row.recipe.summary} | {row.recipe.source} |" for name, row in VARIANTS.items()]
    return "\n".join(["| variant | what it is | source |", "| --- | --- | --- |", *rows])


def settings_table(cls: type) -> str:
    """The settings that a dataclass declares itself, as a table of flags for docs/settings.md."""
    rows = ["| flag | default | allowed | meaning |", "| --- | --- | --- | --- |"]
    for name in cls.__annotations__:
        field = settings_of(cls)[name]
        default = "" if field.default is None else f"`{field.default}`"
        if "suggested" in field.metadata:
            default = "`{}` for the embedded models, else `{}`".format(*field.metadata["suggested"])
        meaning = field.metadata["help"].replace("|", r"\|")
        rows.append(f"| `--{name.replace('_', '-')}` | {default} | {allowed(field)} | {meaning} |")
    return "\n".join(rows)


def python_blocks(path: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
def test_the_python_page_runs(tmp_path, monkeypatch):
    """The first two blocks in one program; the third as the module of a training run."""
    training, by_hand, module = python_blocks(DOCS / "python.md")
    (tmp_path / "my_variants.py").write_text(module)
    checks = "\nimport jax.numpy as jnp\nassert record.step == 3 and jnp.isfinite(metrics['grad_norm'])\n"
    own = (
        "from my_variants import LENGTH_CLIP\ngj.register_variant(LENGTH_CLIP)\n"
        "config = gj.RunConfig(variant='length-clip', numbers='clip_width=0.5', steps=2)\n"
        "assert config.make_variant().loss.numbers == {'clip_width': 0.5}\n"
        "for state, record in gj.train(config, policy, problems): pass\n"
        "assert record.metrics['clip_frac'] >= 0 and 'min(r A, clip(r, 1 - w_i' in gj.explain('length-clip')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", training + by_hand + checks + own], cwd=tmp_path, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(DOCS.parent), str(tmp_path)])}, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_settings_page_is_that_of_the_code():
    text = (DOCS / "settings.md").read_text("utf-8")
    for table in (settings_table(RunConfig), settings_table(VariantSettings)):
        assert table in text, f"docs/settings.md is out of date; its table must be:\n{table}"


def test_the_variants_of_the_readme_are_those_of_the_code():
    text = (DOCS.parent / "README.md").read_text("utf-8")
    assert variants_table() in text, f"README.md is out of date; its table must be:\n{variants_table()}"
