"""Where things are: XDG directories, the profiles and the bundled checkpoint. Computes, never creates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from glm53ctl.env import Environ

_PACKAGE = Path(__file__).resolve().parent
FLASH_FOLDER = "GLM-5.3-Flash-exl3-3.05bpw"


@dataclass(frozen=True, slots=True)
class Paths:
    """Directories of one user. None of them needs to exist."""

    config_file: Path
    state_dir: Path  # one folder per instance below it
    cache_dir: Path
    runtime_dir: Path
    models_dir: Path

    def instance_dir(self, instance: str) -> Path:
        """state.json, plan.json, lock and logs/ of one instance."""
        return self.state_dir / instance


def user_paths(
    environ: Environ, *, root: Path | None = None, models_dir: Path | None = None
) -> Paths:
    """Paths from XDG variables; `root` (GLM53_ROOT) replaces state, cache and models by one folder."""
    home = Path(environ.get("HOME") or "/")

    def base(name: str, default: str) -> Path:
        return Path(environ.get(name) or home / default) / "glm53"

    state = root / "state" if root else base("XDG_STATE_HOME", ".local/state")
    runtime = environ.get("XDG_RUNTIME_DIR")
    hub = environ.get("HF_HOME")
    if models_dir is None and root is not None:
        models_dir = root / "models"
    if models_dir is None:
        models_dir = Path(hub) if hub else base("XDG_DATA_HOME", ".local/share") / "models"
    config = environ.get("GLM53_CONFIG")
    return Paths(
        config_file=Path(config) if config else base("XDG_CONFIG_HOME", ".config") / "config.toml",
        state_dir=state,
        cache_dir=root / "cache" if root else base("XDG_CACHE_HOME", ".cache"),
        runtime_dir=Path(runtime) / "glm53" if runtime else state,
        models_dir=models_dir,
    )


def foreign_home(environ: Environ, file: Path, *, user_id: int) -> str | None:
    """The user whose home would receive a file owned by root, when sudo kept that home."""
    user = environ.get("SUDO_USER")
    if user_id != 0 or user is None or user == "root":
        return None
    existing = next((folder for folder in file.parents if folder.exists()), Path("/"))
    return user if existing.stat().st_uid != 0 else None


def profiles_dir() -> Path:
    """The shipped profiles: inside an installed wheel, or at the root of a checkout."""
    shipped = _PACKAGE / "_profiles"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "profiles"


def tiny_checkpoint() -> Path:
    """The bundled tiny checkpoint: inside an installed wheel, or in a checkout's reference/."""
    shipped = _PACKAGE / "_reference" / "tiny"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "reference" / "tiny"
