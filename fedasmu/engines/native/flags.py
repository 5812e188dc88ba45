"""How the engine is compiled: once for each instruction set. setup.py reads this file before the package is there."""

import platform

FLAGS = ["-std=c++20", "-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
VARIANTS: dict[str, list[str]] = {
    "base": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": ["-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-mfma"],
}
if platform.machine() not in ("x86_64", "AMD64"):
    VARIANTS = {"base": []}
