"""The recipes that come with the package, by name."""

from __future__ import annotations

from pathlib import Path

from fedasmu.errors import UserError, did_you_mean

RECIPES = Path(__file__).parent.parent / "recipes"


def find(name: str | Path) -> Path:
    """The file of a recipe: a path, or the name of one of ours."""
    if not isinstance(name, str | Path):
        raise UserError(f"recipe: its name or its file, not a {type(name).__name__}")
    path, packaged = Path(name), RECIPES / f"{name}.toml"
    if path.is_file():
        return path
    if packaged.is_file():
        return packaged
    if (path / "config.toml").is_file():
        raise UserError(
            f"{name} is a run directory: `fedasmu resume {name}` goes on with it, {path / 'config.toml'} is its recipe"
        )
    known = sorted(recipe.stem for recipe in RECIPES.glob("*.toml"))
    hint = did_you_mean(path.stem, known)
    raise UserError(f"{name}: no such recipe file, nor the name of a recipe{hint} (names: {', '.join(known)})")
