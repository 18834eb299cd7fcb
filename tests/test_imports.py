"""The directions of the imports, read from the sources: the house of docs/design.md, section 1."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "grpojax"
FILES = sorted(PACKAGE.rglob("*.py"))
ROOMS = ("loss", "qwen", "tasks", "training", "reporting")


def name_of(path: Path) -> str:
    """grpojax/loss/reduce.py -> loss.reduce"""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(path: Path, lazy: bool = True) -> set[str]:
    """Full names of the modules a file imports; without `lazy` only those it imports when it is imported itself."""
    tree = ast.parse(path.read_text("utf-8"))
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
    """What a file imports of the project: room or module names, without "grpojax."."""
    return {name.removeprefix("grpojax.") for name in imports_of(path) if name.startswith("grpojax.")}


def foreign(path: Path, lazy: bool = True) -> set[str]:
    """Top-level packages a file imports from elsewhere."""
    return {name.split(".")[0] for name in imports_of(path, lazy)} - {"grpojax"}


def in_room(room: str) -> list[Path]:
    return [path for path in FILES if path.is_relative_to(PACKAGE / room)]


@pytest.mark.parametrize(
    ("room", "allowed"),
    [
        ("loss", ("products",)),
        ("qwen", ("products",)),
        ("tasks", ()),
        ("reporting", ("records",)),
        ("training", ("loss", "qwen", "tasks", "products", "records", "variants", "config")),
    ],
)
def test_rooms_import_only_from_above(room, allowed):
    assert in_room(room)
    for path in in_room(room):
        rooms = {name.split(".")[0] for name in own(path)} - {room, "errors", "files", "plugins"}
        assert rooms <= set(allowed), f"{name_of(path)} imports {rooms - set(allowed)}"


def test_files_between_the_rooms():
    allowed = {
        "errors": set(),
        "records": set(),
        "products": set(),
        "files": {"errors"},
        "plugins": {"errors"},
        "flags": {"errors"},
        "variants": {"errors", "loss"},
        "describe": {"loss", "variants"},
        "config": {"errors", "variants", "training.sampling"},
        "__init__": set(),
        "__main__": {"cli"},
    }
    for name, names in allowed.items():
        found = own(PACKAGE / f"{name}.py")
        assert found <= names, f"{name} imports {found - names}"


def test_nobody_imports_what_shows_and_runs():
    may = {"__main__": {"cli"}, "cli": {"runner", "flags"}, "runner": {"config"}}
    for path in FILES:
        found = own(path) & {"cli", "runner", "flags"}
        assert found <= may.get(name_of(path), set()), name_of(path)


def test_the_config_needs_no_more_of_training_than_how_to_sample():
    # training imports config; sampling must not, or the circle closes.
    assert not own(PACKAGE / "training" / "sampling.py") & {"config", "variants"}


def test_the_mathematics_knows_arrays_only():
    for path in in_room("loss"):
        assert foreign(path) <= {"jax", "numpy", "inspect", "collections", "typing"}, name_of(path)


def test_tasks_know_no_arrays():
    for path in in_room("tasks"):
        assert not foreign(path) & {"jax", "jaxlib", "flax", "optax", "orbax", "numpy", "torch"}, name_of(path)


def test_reporting_knows_no_model():
    for path in in_room("reporting"):
        assert not foreign(path) & {"jax", "jaxlib", "flax", "optax", "orbax", "torch"}, name_of(path)


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("flax", {"qwen.model"}),
        ("torch", {"qwen.weights"}),
        ("optax", {"training.update", "training.train", "training.checkpoint"}),
        ("orbax", {"qwen.weights", "training.checkpoint"}),
        ("tokenizers", {"qwen.tokenizer"}),
        ("safetensors", {"qwen.weights"}),
        ("huggingface_hub", {"qwen.sources"}),
        ("sympy", {"tasks.symbolic", "tasks.book"}),
        ("math_verify", {"tasks.math_verify_grader"}),
        ("matplotlib", {"reporting.plots"}),
        ("rich", {"reporting.progress"}),
        ("transformers", set()),
        ("reasoning_from_scratch", set()),
    ],
)
def test_one_place_knows_each_library(package, homes):
    assert {name_of(path) for path in FILES if package in foreign(path)} == homes


@pytest.mark.parametrize("package", ["torch", "orbax"])  # optional; slow, and not needed before the first checkpoint
def test_some_libraries_are_imported_only_by_the_functions_that_use_them(package):
    assert not any(package in foreign(path, lazy=False) for path in FILES)


def test_only_the_edges_print():
    may = {"cli", "flags", "runner", "reporting.progress"}
    printing = {
        name_of(path)
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    }
    assert printing <= may


def test_every_file_says_what_it_is():
    missing = [str(path) for path in FILES if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]
    assert not missing
