"""What the guard stops: four kinds of lies, three shares of liars, guard off and on, and a method's table in the docs.

    python benchmarks/guard.py --out runs/guard [--seeds 3] [--method fedasmu] [--table]

The quickstart, with a device every 5 s, on the Fashion-MNIST that comes with the package, so that everybody can repeat
it: 78 runs of about 20 processor seconds each. It stops and goes on as every comparison does; `--table` only writes
what there is so far.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
from pathlib import Path

from fedasmu import Result

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "guard.md"
KINDS = {
    "sign-flip": "turned round",
    "scale": "10 times as far",
    "noise": "noise",
    "same-value": "one value everywhere",
}
SHARES = ("0.1", "0.2", "0.3")
GUARD = "guard.clip=3.0,guard.refuse=10.0"


def run(out: Path, method: str, seeds: int) -> None:
    """Two comparisons: nobody lies, and everybody's lie."""
    methods = ["--methods", f"off={method},on={method}({GUARD})", "--set", "data.name=fashion-mnist-small"]
    methods += ["--set", "pacing.period=5"]
    lies = ["--vary", f"attack.kind={','.join(KINDS)}", "--vary", f"attack.share={','.join(SHARES)}"]
    for place, more in ((out / f"{method}-honest", []), (out / method, lies)):
        command = [sys.executable, "-m", "fedasmu", "compare", "quickstart", *methods, *more]
        subprocess.run([*command, "--seeds", str(seeds), "--out", str(place)], check=True)


def accuracies(folder: Path) -> list[float]:
    """Of the runs there that are finished, a seed each."""
    return [Result(path.parent).accuracy for path in sorted(folder.glob("seed-*/summary.json"))]


def cell(off: list[float], on: list[float]) -> str:
    def shown(seeds: list[float]) -> str:
        spread = f" ± {statistics.stdev(seeds):.3f}" if len(seeds) > 1 else ""
        return f"{statistics.fmean(seeds):.3f}{spread}" if seeds else "?"

    return f"{shown(off)} / {shown(on)}"


def table(out: Path, method: str) -> str:
    """Mean and standard deviation over the seeds, guard off / on."""
    honest = [accuracies(out / f"{method}-honest" / guard) for guard in ("off", "on")]
    counts = {len(honest[0])}
    lines = ["| devices that lie | " + " | ".join(KINDS.values()) + " |", "|---|" + "---|" * len(KINDS)]
    for share in SHARES:
        pairs = [
            [accuracies(out / method / f"{guard}-kind-{kind}-share-{share}") for guard in ("off", "on")]
            for kind in KINDS
        ]
        counts |= {len(seeds) for pair in pairs for seeds in pair}
        lines.append(f"| {float(share):.0%} | " + " | ".join(cell(*pair) for pair in pairs) + " |")
    seeds = f"{min(counts)}" if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return "\n".join([f"`{method}`, {seeds} seeds; nobody lies: {cell(*honest)}.", "", *lines])


def filled(page: str, method: str, found: str) -> str:
    """The page with this table in the method's place."""
    place = rf"(<!-- benchmarks/guard.py --method {re.escape(method)} writes this -->\n).*?(\n<!-- to here -->)"
    page, count = re.subn(place, lambda match: match[1] + found + match[2], page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE}: there must be one place for the table of {method}, not {count}")
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/guard"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--method", default="fedasmu")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        run(options.out, options.method, options.seeds)
    found = table(options.out, options.method)
    PAGE.write_text(filled(PAGE.read_text(), options.method, found))
    print(found)


if __name__ == "__main__":
    main()
