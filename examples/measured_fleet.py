"""A measured fleet: five devices with their own speeds and hours, as two CSV files, and what that does to two methods.

Nothing is trained here: only the order of events is simulated. Run it with `python examples/measured_fleet.py`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fedasmu import Experiment, Result

PROFILES = """device,seconds_per_sample,down_mbps,up_mbps,latency
0,0.004,80,20,0.02
1,0.005,60,15,0.03
2,0.009,40,10,0.05
3,0.020,20,5,0.08
4,0.060,8,2,0.15
"""
TRACE = """device,start,end
0,0,7200
1,0,7200
2,600,5400
3,0,3600
4,0,7200
"""


def main(folder: Path) -> dict[str, Result]:
    (folder / "profiles.csv").write_text(PROFILES)
    (folder / "trace.csv").write_text(TRACE)
    changes = {
        "data.name": "fashion-mnist-small",
        "fleet.devices": 5,
        "fleet.profiles": str(folder / "profiles.csv"),
        "fleet.trace": str(folder / "trace.csv"),
        "pacing.max_in_flight": 4,  # of five devices, 0.1 would be one: nothing would overlap
        "stop.uploads": 200,
        "timing_only": True,
    }
    return {
        name: Experiment("quickstart", {**changes, "algorithm.name": name}).run(folder / name)
        for name in ("fedasync", "fedavg")
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for name, result in main(Path(place)).items():
            run = result.summary
            print(
                f"{name}: {run['uploads']} uploads in {run['virtual_seconds']:,.0f} s, "
                f"staleness {run['mean_staleness']:.2f}"
            )
