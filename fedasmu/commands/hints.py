"""A command line that was not understood, in one sentence: what is wrong, and what was probably meant."""

from __future__ import annotations

import re
from typing import Any

import typer
from typer.core import TyperCommand

from fedasmu.errors import did_you_mean

ARGUMENTS = {
    "(out)": "(--out DIR)",
    "(overwrite)": "(--overwrite)",
    "(resume)": "(`fedasmu resume DIR`)",
    "(seeds)": "(--seeds N)",
}
UsageError: Any = typer.BadParameter.__mro__[1]  # typer has it from click, and shows its child alone
ELSEWHERE = {
    "--methods": "`fedasmu compare RECIPE --methods a,b` runs several; --set algorithm.name=NAME changes the one",
    "--seeds": "`fedasmu compare RECIPE --seeds 3` runs several seeds; --seed N is the one of a run",
    "--algorithm": "the method is a key of the recipe: --set algorithm.name=NAME",
    "--method": "the method is a key of the recipe: --set algorithm.name=NAME",
    "--dry-run": "--set timing_only=true simulates the order of events without training",
    "-o": "the run directory is --out DIR",
    "-v": "everything that happens is in events.jsonl of the run directory",
}


def typed(message: str) -> str:
    """What is said of an argument that Python has too, in the words of the command line."""
    return re.sub("|".join(map(re.escape, ARGUMENTS)), lambda found: ARGUMENTS[found[0]], message)


class Hinting(TyperCommand):
    """A command whose every mistake knows which command it was made in, and whose help fits any terminal."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.epilog = _joined(self.epilog or "")

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except UsageError as error:
            error.ctx = error.ctx or ctx
            raise


def _joined(text: str) -> str:
    """Each paragraph in one line, for the terminal to break: of two who break it, one leaves stumps."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.strip().split("\n\n"))


def told(error: Any) -> str:
    """The sentence. Empty where a command without arguments has shown its help instead."""
    kind, command = type(error).__name__, error.ctx.command
    if kind == "NoArgsIsHelpError":
        return ""
    message = " ".join(error.format_message().rstrip(".").replace("Value error, ", "").split())
    if kind == "NoSuchOption":
        message = f"no such option: {error.option_name}{_meant(command, error.option_name)}"
    elif kind == "BadOptionUsage" and "requires" in message:
        message = f"{error.option_name} needs a value{_purpose(command, error.option_name)}"
    elif kind == "MissingParameter":
        message += _purpose(command, error.param.opts[0])
    elif found := re.search(r"'([^']*)' is not one of (.*)", message):
        message += did_you_mean(found[1], re.findall(r"'([^']*)'", found[2]))
    elif "unexpected extra argument" in message and any("--methods" in param.opts for param in command.params):
        message += ": a list is written with commas, as in --methods fedasmu,fedavg"
    elif value := _refused(error.__cause__):
        message = message.replace(f": {error.message}", f": {value}: {error.message[0].lower()}{error.message[1:]}")
    path = error.ctx.command_path
    return f"{path}: {message[0].lower()}{message[1:]} (`{path} -h` tells more)"


def _refused(cause: BaseException | None) -> str:
    """The value that an option's type did not take, where the message lacks it."""
    from pydantic import ValidationError

    return repr(cause.errors()[0]["input"]) if isinstance(cause, ValidationError) else ""


def _purpose(command: Any, name: str) -> str:
    """How an option or argument is written, and what it is for."""
    param = next(param for param in command.params if name in param.opts)
    written = f", as in {name} {param.metavar or 'VALUE'}" if name.startswith("-") else ""
    return f"{written}: {param.help.rstrip('.')}" if param.help else written


def _meant(command: Any, option: str) -> str:
    known = [name for param in command.params for name in param.opts if name.startswith("-")]
    if option in ELSEWHERE:
        return f"; {ELSEWHERE[option]}"
    if near := did_you_mean(option, known, cutoff=0.75):
        return near
    if "--set" in known and (keys := _keys_named(option)):
        return f"; did you mean {' or '.join(f'--set {key}=VALUE' for key in keys)}?"
    return f"; it has {', '.join(sorted(known))}"


def _keys_named(option: str) -> list[str]:
    """The keys of a recipe that an option of this name could stand for."""
    from fedasmu.settings.mistakes import meant

    return meant(option.lstrip("-").replace("-", "_"))
