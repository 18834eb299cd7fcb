"""Which module may import which, read from the sources: the table at the top of docs/design.md."""

import ast
import functools
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpojax"
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    """grpojax/loss/reduce.py -> loss.reduce"""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imports_of(path: Path, lazy: bool = True) -> set[str]:
    """Full names of the modules a file imports; without `lazy` only those it imports when it is imported itself."""
    tree = parsed(path)
    inside = {node for function in ast.walk(tree) if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
              for node in ast.walk(function)}  # fmt: skip
    found = set()
    for node in ast.walk(tree):
        if not lazy and node in inside:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively; write the full name"
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "grpojax"}
    return found


def own(path: Path) -> set[str]:
    """What a file imports from the project: package or module names, without "grpojax."."""
    return {name.removeprefix("grpojax.") for name in imports_of(path) if name.startswith("grpojax.")}


def foreign(path: Path, lazy: bool = True) -> set[str]:
    """Top-level packages a file imports from elsewhere."""
    return {name.split(".")[0] for name in imports_of(path, lazy)} - {"grpojax"}


def in_package(package: str) -> list[Path]:
    return [path for path in FILES if path.is_relative_to(PACKAGE / package)]


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("loss", ("precision",)),
        ("qwen", ("precision", "device")),
        ("grading", ()),
        ("tasks", ("grading", "plugins")),
        ("reporting", ("records",)),
        ("training", ("loss", "qwen", "grading", "tasks", "precision", "device", "records", "variants", "config")),
    ],
)
def test_packages_import_only_from_those_above_them(package, allowed):
    assert in_package(package)
    for path in in_package(package):
        found = {name.split(".")[0] for name in own(path)} - {package, "errors", "files"}
        assert found <= set(allowed), f"{name_of(path)} imports {found - set(allowed)}"


def test_modules_outside_the_packages():
    allowed = {
        "errors": set(),
        "records": set(),
        "precision": set(),
        "device": set(),
        "files": {"errors"},
        "plugins": {"errors"},
        "settings": {"errors"},
        "flags": {"errors", "settings"},
        "variants": {"errors", "loss", "plugins", "settings"},
        "describe": {"loss", "variants", "settings"},
        "config": {"errors", "loss", "settings", "variants", "training.sampling"},
        "process": {"tasks"},
        "inputs": {"device", "config", "errors", "qwen", "tasks", "training"},
        "__init__": set(),
        "__main__": {"cli"},
    }
    for name, names in allowed.items():
        found = {module for module in own(PACKAGE / f"{name}.py") if module not in names and module.split(".")[0] not in names}
        assert not found, f"{name} imports {found}"


def test_only_entry_points_import_commands_and_the_runner():
    may = {"__main__": {"cli"}, "cli": {"runner", "flags", "inputs", "process"}, "runner": {"inputs", "process"}}
    for path in FILES:
        found = own(path) & {"cli", "runner", "flags", "inputs", "process"}
        assert found <= may.get(name_of(path), set()), name_of(path)


def test_the_config_imports_only_sampling_from_training():
    # training imports config, so sampling must not: the imports would be circular.
    assert not own(PACKAGE / "training" / "sampling.py") & {"config", "variants"}


def test_the_mathematics_imports_only_jax_and_numpy():
    for path in in_package("loss"):
        assert foreign(path) <= {"jax", "numpy", "inspect", "collections", "dataclasses", "typing"}, name_of(path)


def test_grading_and_tasks_import_no_array_library():
    for path in in_package("grading") + in_package("tasks"):
        assert not foreign(path) & {"jax", "jaxlib", "flax", "optax", "orbax", "numpy", "torch"}, name_of(path)


def test_reporting_imports_no_jax():
    for path in in_package("reporting"):
        assert not foreign(path) & {"jax", "jaxlib", "flax", "optax", "orbax", "torch"}, name_of(path)


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("flax", {"qwen.model"}),
        ("torch", {"qwen.weights"}),
        ("optax", {"training.update", "training.state", "training.train", "training.checkpoint"}),
        ("orbax", {"qwen.weights", "training.checkpoint"}),
        ("tokenizers", {"qwen.tokenizer"}),
        ("safetensors", {"qwen.weights"}),
        ("huggingface_hub", {"qwen.sources"}),
        ("sympy", {"grading.symbolic", "grading.book"}),
        ("math_verify", {"grading.math_verify"}),
        ("matplotlib", {"reporting.plots"}),
        ("rich", {"reporting.progress"}),
        ("transformers", set()),
        ("reasoning_from_scratch", set()),
    ],
)
def test_each_library_is_imported_in_one_place(package, homes):
    assert {name_of(path) for path in FILES if package in foreign(path)} == homes


@pytest.mark.parametrize("package", ["torch", "orbax"])  # optional; slow, and not needed before the first checkpoint
def test_some_libraries_are_imported_only_by_the_functions_that_use_them(package):
    assert not any(package in foreign(path, lazy=False) for path in FILES)


def test_only_commands_and_progress_print():
    may = {"cli", "flags", "runner", "reporting.progress"}
    printing = {
        name_of(path)
        for path in FILES
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing <= may


def test_every_file_has_a_docstring():
    missing = [str(path) for path in FILES if not ast.get_docstring(parsed(path))]
    assert not missing
