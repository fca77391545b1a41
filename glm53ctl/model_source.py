"""Which checkpoint the settings mean, and its sizes: bundled, downloaded, a directory, or none at all.

"None at all" is `--load-format dummy`: weights made in memory at GLM-5.3-Flash's geometry, cut to
fewer layers or experts on request, for measuring speed without the download.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from glm53ctl.checkpoint import FLASH, ModelFacts, facts, open_checkpoint
from glm53ctl.env import Settings
from glm53ctl.errors import ArtifactError, UsageError
from glm53ctl.fetch import is_incomplete
from glm53ctl.paths import FLASH_FOLDER, Paths, tiny_checkpoint
from glm53ctl.planner import Model

FLASH_NAME = "glm-5.3-flash"
TINY_NAME = "tiny"
REAL_WEIGHTS = "checkpoint"
_DUMMY_SIZES = ("layers", "experts", "hidden", "moe")
_DENSE_LAYERS = 3
_BITS = 3
_EMBEDDING_BYTES = FLASH.vocab_size * (2 * FLASH.hidden + 6 * FLASH.hidden // 8)  # input and head


def find_model(settings: Settings, paths: Paths) -> Model:
    """The checkpoint the settings name, inspected from headers only.

    A missing or incomplete GLM-5.3-Flash is not an error yet: its sizes are known, so it can be
    planned for. Raises BadModel for a directory that is not a checkpoint, ArtifactError for a name
    that is none of ours, UsageError for a load format that does not exist.
    """
    name = settings.model
    if settings.load_format != REAL_WEIGHTS:
        # The engine takes the tokenizer from there.
        return Model(dummy_facts(settings.load_format), path=str(tiny_checkpoint()))
    if name == TINY_NAME:
        return Model(_inspect(tiny_checkpoint(), TINY_NAME), path=str(tiny_checkpoint()))
    if name == FLASH_NAME:
        folder = settings.model_dir or paths.models_dir / FLASH_FOLDER
        if not is_incomplete(folder):
            return Model(_inspect(folder, FLASH_NAME), path=str(folder))
        return Model(FLASH, path=str(folder), present=False)
    folder = expanded(name)
    if "/" not in name and not _exists(folder):
        raise ArtifactError(
            f"there is no model {name!r}",
            hint=f"use {FLASH_NAME}, {TINY_NAME}, or the directory of a checkpoint",
        )
    return Model(_inspect(folder, folder.resolve().name), path=str(folder.resolve()))


def named_folder(settings: Settings) -> Path | None:
    """The resolved directory that the settings name, there or not; None for a model of ours.

    Raises ArtifactError for a name that can be no directory.
    """
    if settings.model in {TINY_NAME, FLASH_NAME}:
        return None
    try:
        return expanded(settings.model).resolve()
    except (OSError, ValueError, RuntimeError) as err:
        raise ArtifactError(f"there is no directory {settings.model!r}: {err}") from err


def dummy_facts(load_format: str) -> ModelFacts:
    """Sizes of "dummy[:layers=N,experts=N,...]". Raises UsageError for any other load format."""
    kind, _, arguments = load_format.partition(":")
    sizes = {"layers": FLASH.layers, "experts": FLASH.experts, "hidden": FLASH.hidden,
             "moe": FLASH.moe_intermediate}  # fmt: skip
    for part in filter(None, arguments.split(",")):
        key, _, value = part.partition("=")
        if key not in sizes or not 0 < _number(value) < 1 << 31:
            kind = ""
            break
        sizes[key] = int(value)
    if kind != "dummy":
        raise UsageError(
            f"load format {load_format!r} is not {REAL_WEIGHTS} or dummy[:SIZE=N,...]",
            hint=f"sizes: {', '.join(_DUMMY_SIZES)}; for example dummy:layers=8,experts=288",
            error_id="CFG-004",
        )
    moe_layers = max(0, sizes["layers"] - _DENSE_LAYERS)
    expert_bytes = 3 * sizes["hidden"] * sizes["moe"] * _BITS // 8
    width = sizes["hidden"] / FLASH.hidden
    layer_bytes = (FLASH.resident_bytes - _EMBEDDING_BYTES) / FLASH.layers * width * width
    return replace(
        FLASH,
        layers=sizes["layers"],
        moe_layers=moe_layers,
        experts=sizes["experts"],
        hidden=sizes["hidden"],
        moe_intermediate=sizes["moe"],
        expert_bytes=expert_bytes,
        expert_total_bytes=moe_layers * sizes["experts"] * expert_bytes,
        resident_bytes=int(_EMBEDDING_BYTES * width + layer_bytes * sizes["layers"]),
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 20 else 0


def expanded(name: str) -> Path:
    """A directory as people write it, with `~`. Raises ArtifactError for a user who is not there."""
    try:
        return Path(name).expanduser()
    except RuntimeError as err:
        raise ArtifactError(f"there is no directory {name!r}: {err}") from err


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that no file can have
        return False


def _inspect(folder: Path, name: str) -> ModelFacts:
    return replace(facts(open_checkpoint(folder)), name=name)
