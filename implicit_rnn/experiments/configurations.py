"""Where configurations are: a file, or one found by its name."""

from __future__ import annotations

import tomllib
from pathlib import Path

import implicit_rnn
from implicit_rnn.experiments.options import ConfigError, known
from implicit_rnn.training.files import in_words


def folders() -> list[Path]:
    """Where names are looked for: `configs/` here, then those that come with the library."""
    package = Path(implicit_rnn.__file__).parent
    own = package / "configs"  # of an installed distribution; a clone has them at its top
    return [Path("configs"), own if own.is_dir() else package.parent / "configs"]


def located(name: str | Path) -> Path:
    """The file that a path, or a name like `biased_walk`, means."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists() or len(path.parts) != 1:
        return path
    found = [folder / f"{name}.toml" for folder in folders()]
    for candidate in found:
        if candidate.exists():
            return candidate
    known(str(name), {entry.stem for entry in available()}, "configuration")
    raise ConfigError(f"no such file: {found[0]}")


def available() -> list[Path]:
    """All that can be named."""
    found: dict[str, Path] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            found.setdefault(path.stem, path)
    return list(found.values())


def described() -> dict[str, str]:
    """By name: the title, and the profiles in brackets; what is wrong with one that has none."""
    entries = {}
    for path in available():
        try:
            content = tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            entries[path.stem] = f"cannot be read: {in_words(error)}"
            continue
        title, profiles = str(content.get("title", "")), content.get("profiles", {})
        names = ", ".join(profiles) if isinstance(profiles, dict) else ""
        entries[path.stem] = title + (f" [{names}]" if names else "")
    return entries
