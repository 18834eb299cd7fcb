"""From a model's name to its folder or file."""

import hashlib
import json
import re
from pathlib import Path

from grpojax.errors import InputError, did_you_mean

EMBEDDED = ("tiny-base", "tiny-reasoning")

_SIZES = {
    "Qwen/Qwen3-{}-Base": ("0.6B", "1.7B", "4B", "8B", "14B"),
    "Qwen/Qwen3-{}": ("0.6B", "1.7B", "4B", "8B", "14B", "32B"),
    "Qwen/Qwen2.5-{}": ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B"),
    "Qwen/Qwen2.5-{}-Instruct": ("0.5B", "1.5B", "3B", "7B", "14B", "32B", "72B"),
}
_HUB_NAMES = tuple(name.format(size) for name, sizes in _SIZES.items() for size in sizes)
SHORT_NAMES = {name.split("/")[1].lower(): name for name in _HUB_NAMES}
"""qwen3-0.6b-base -> Qwen/Qwen3-0.6B-Base, and so on."""

_HUB_FILES = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "*.safetensors",
              "model.safetensors.index.json")  # fmt: skip


def model_files(source: str | Path) -> Path:
    """The folder (or the book's .pth file) of a model.

    Args:
      source: a policy folder; a run folder, for its newest complete checkpoint; a .pth file; `tiny-base` or
        `tiny-reasoning`; a hub name `org/name`, or its short form such as `qwen3-0.6b-base`.

    Raises:
      InputError: there is no such model, or it could not be downloaded.
    """
    path = Path(source).expanduser()
    if (path / "checkpoints").is_dir():
        return newest_checkpoint(path)
    if path.exists():
        return path
    name = str(source)
    if name.lower() in EMBEDDED:
        return _embedded_folder(name.lower())
    if name.lower() in SHORT_NAMES:
        return _hub_folder(SHORT_NAMES[name.lower()])
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) and path.suffix != ".pth":
        return _hub_folder(name)
    names = (*EMBEDDED, *SHORT_NAMES)
    raise InputError(
        f"there is no model {name!r}; give a folder, a .pth file, a hub name such as Qwen/Qwen3-0.6B-Base, or one of "
        f"{', '.join(names)}.{did_you_mean(name.lower(), names)}"
    )


def newest_checkpoint(run: Path) -> Path:
    """The last complete checkpoint in a run's checkpoints/."""
    steps = [folder for folder in (run / "checkpoints").iterdir() if folder.name.isdigit() and _is_checkpoint(folder)]
    if not steps:
        raise InputError(f"the run {run} has no complete checkpoint yet; train until its first one, or name another model.")
    return max(steps, key=lambda folder: int(folder.name))


def safetensors_files(folder: Path) -> dict[Path, list[str] | None]:
    """The weight files of a Hugging Face folder, each with the tensors to read from it (None: all).

    If there is an index, only the files it names count.

    Raises:
      InputError: there are no weights, or the index is damaged or names a missing file.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            weight_map = json.loads(index.read_text("utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{index} is damaged ({error}); download it again.") from error
        files: dict[Path, list[str] | None] = {folder / file: [] for file in weight_map.values()}
        for tensor, file in weight_map.items():
            files[folder / file].append(tensor)
        absent = sorted(file.name for file in files if not file.is_file())
        if absent:
            raise InputError(f"{index} names {', '.join(absent)}, which is missing; download it too.")
        return files
    if (folder / "model.safetensors").is_file():
        return {folder / "model.safetensors": None}
    raise InputError(f"{folder} has no weights; expected model.safetensors, an index with its files, or params/.")


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its type if there is none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_checkpoint(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "params").is_dir()


def _embedded_folder(name: str) -> Path:
    """Installed with the package, or in weights/ of a checkout."""
    package = Path(__file__).parents[1]
    for folder in (package / "embedded" / name, package.parent / "weights" / name):
        if (folder / "config.json").is_file():
            return folder
    raise InputError(
        f"the embedded model {name!r} is not installed; install grpojax again, or run weights/make_tiny.py."
    )


def _hub_folder(name: str) -> Path:
    """A snapshot of a hub repository: from the cache, without any request, if it is complete; otherwise downloaded."""
    # Imported here because it is slow and most runs do not need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        cached = Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=True))
        if _is_complete(cached):
            return cached
    except (OSError, ValueError):  # missing, incomplete, or not the name of a repository
        pass
    try:
        folder = Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except RepositoryNotFoundError as error:
        hint = did_you_mean(name, _HUB_NAMES)
        raise InputError(
            f"there is no folder {name!r}, and the hub has no such model that you may read; check the name, or log in "
            f"with `hf auth login` where it asks for an agreement.{hint}"
        ) from error
    except Exception as error:  # hub, network or disk: the remedy is the same
        raise _unavailable(name, constants.HF_HUB_CACHE, first_line(error)) from error
    if not _is_complete(folder):  # without a network the hub's client accepts an incomplete snapshot
        raise _unavailable(name, constants.HF_HUB_CACHE, "the download is incomplete")
    _check_hashes(folder)
    return folder


def _unavailable(name: str, cache: str, reason: str) -> InputError:
    return InputError(
        f"{name!r} is neither a folder nor complete in the cache {cache}, and its model.safetensors could not be "
        f"downloaded ({reason}); connect to the network and unset HF_HUB_OFFLINE, or run `hf download {name}` "
        "elsewhere and give the copied folder."
    )


def _is_complete(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and bool(safetensors_files(folder))
    except InputError:
        return False


def _check_hashes(folder: Path) -> None:
    """Removes a file whose SHA-256 is not the one in its name in the cache, so that it is downloaded again.

    Of a plain HTTP download huggingface_hub compares the size, not the content.
    """
    for link in folder.glob("*.safetensors"):
        blob = link.resolve()
        if not re.fullmatch("[0-9a-f]{64}", blob.name):
            continue
        with blob.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != blob.name:
            link.unlink()
            blob.unlink()
            raise InputError(f"{link.name} was damaged by the download and removed; run the command again to download it.")
