"""The package: its public names, and what goes into a wheel."""

import inspect
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import grpojax

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("name", grpojax.__all__)
def test_public_names_resolve_and_explain_themselves(name):
    thing = getattr(grpojax, name)
    if inspect.isroutine(thing) or inspect.isclass(thing) or callable(thing):
        assert inspect.getdoc(thing), f"{name} has no docstring"
        assert thing.__module__.startswith("grpojax.")


def test_the_contract():
    wanted = {
        "load_policy", "save_policy", "token_logps", "token_entropy", "answer_mask", "group_advantages", "gdpo_advantages",
        "get_variant", "policy_loss", "grade", "extract_answer", "VARIANTS",
    }  # fmt: skip
    assert wanted <= set(grpojax.__all__)
    assert sorted(grpojax.__all__) == dir(grpojax)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'grpojax' has no attribute 'polic_loss'"):
        grpojax.polic_loss  # noqa: B018


@pytest.mark.slow
def test_importing_the_package_imports_no_jax():
    code = "import sys, grpojax, grpojax.grading.grader, grpojax.reporting.metrics; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_version_is_the_packages():
    assert grpojax.__version__ == PROJECT["project"]["version"]


def test_every_dependency_that_is_imported_is_declared():
    declared = " ".join(PROJECT["project"]["dependencies"]).replace("-", "_")
    for module in ("jax", "flax", "optax", "orbax_checkpoint", "safetensors", "tokenizers", "huggingface_hub", "sympy", "numpy",
                   "matplotlib", "rich"):  # fmt: skip
        assert module in declared


def test_the_wheel_carries_the_embedded_models():
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"weights/{name}": f"grpojax/embedded/{name}" for name in ("tiny-base", "tiny-reasoning")}
    for source in included:
        if not (ROOT / source / "config.json").exists():
            pytest.skip(f"{source} is not made yet")
        for file in ("config.json", "tokenizer.json", "model.safetensors"):
            assert (ROOT / source / file).is_file()


def test_the_command_points_to_its_function():
    module, function = PROJECT["project"]["scripts"]["grpojax"].split(":")
    assert callable(getattr(__import__(module, fromlist=[function]), function))
