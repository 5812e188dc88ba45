"""Options that are not there, and what was probably meant by them."""

from __future__ import annotations

import difflib
from typing import Any

from typer.core import TyperCommand

from fedasmu.errors import UserError

ELSEWHERE = {
    "--methods": "`fedasmu compare RECIPE --methods a,b` runs several; --set algorithm.name=NAME changes the one",
    "--seeds": "`fedasmu compare RECIPE --seeds 3` runs several seeds; --seed N is the one of a run",
    "--algorithm": "the method is a key of the recipe: --set algorithm.name=NAME",
    "--method": "the method is a key of the recipe: --set algorithm.name=NAME",
    "--dry-run": "--set timing_only=true simulates the order of events without training",
    "-o": "the run directory is --out DIR",
    "-v": "all there is to tell is told: there is no more to be had",
}


class Hinting(TyperCommand):
    """A command that says, of an unknown option or one word too many, what was probably meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":
                option = str(getattr(error, "option_name", ""))
                raise UserError(f"{ctx.command_path}: no such option: {option}{self._meant(option)}") from None
            if "unexpected extra argument" in str(error) and any("--methods" in param.opts for param in self.params):
                raise UserError(f"{error}: a list is written with commas, as in --methods fedasmu,fedavg") from None
            raise

    def _meant(self, option: str) -> str:
        known = [name for param in self.params for name in param.opts if name.startswith("-")]
        if option in ELSEWHERE:
            return f"; {ELSEWHERE[option]}"
        if near := difflib.get_close_matches(option, known, n=1, cutoff=0.75):
            return f"; did you mean {near[0]}?"
        if "--set" in known and (keys := _keys_named(option)):
            return f"; did you mean {' or '.join(f'--set {key}=VALUE' for key in keys)}?"
        return f" (it has {', '.join(sorted(known))})"


def _keys_named(option: str) -> list[str]:
    """The keys of a recipe that an option of this name could stand for."""
    from fedasmu.mistakes import meant

    return meant(option.lstrip("-").replace("-", "_"))
