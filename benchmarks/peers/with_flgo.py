"""The work in FLGo: FedAvg, or FedBuff in its asynchronous mode; one process, or a pool of them each round."""

from __future__ import annotations

import os
import sys
import tempfile
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any

from work import COHORT, DEVICES, LR, Order, StepCount, Told, order

for name in ("torchvision", "torchvision.transforms", "torchvision.datasets"):  # only its own data sets need it
    sys.modules[name] = ModuleType(name)

CONFIG = """from torch.utils.data import TensorDataset
from work import images, lenet5
train_data = TensorDataset(*images({images}))
test_data = TensorDataset(*(tensor[:1] for tensor in images({images})))
def get_model(*args, **kwargs):
    return lenet5()
"""


def options(wanted: Order) -> dict[str, Any]:
    asynchronous = {"algo_para": [COHORT / DEVICES, 1.0], "responsiveness": "UNI-1-10"}
    return {
        "num_rounds": wanted.rounds,
        "proportion": COHORT / DEVICES,
        "num_epochs": wanted.load.epochs,
        "batch_size": wanted.load.batch,
        "learning_rate": LR,
        "num_parallels": wanted.workers,
        "parallel_type": "p",
        "train_holdout": 0.0,
        "no_tqdm": True,
        "no_log_console": True,
        **(asynchronous if wanted.method == "fedbuff" else {}),
    }


def run(wanted: Order) -> None:
    import flgo
    from flgo.algorithm import fedavg, fedbuff
    from flgo.benchmark.toolkits import visualization
    from flgo.benchmark.toolkits.cv.classification import FromDatasetPipe
    from flgo.benchmark.toolkits.partition import IIDPartitioner
    from flgo.experiment.logger import BasicLogger

    def several(self: Any, places: list[int]) -> list[Any]:
        """Torch 2.13 refuses a Subset that has only its own `__getitem__`."""
        return [self[place] for place in places]

    FromDatasetPipe.TaskDataset.__getitems__ = several
    visualization.visualize_by_class = lambda *_: None  # a drawing of the split would take longer than the training
    told, counted = Told(wanted.report), StepCount()

    class Ends(BasicLogger):  # type: ignore[misc]
        """Evaluates nothing, and tells of each round but the nought-th."""

        begun = False

        def log_once(self, *_: object, **__: object) -> None:
            if self.begun:
                told.round()
            self.begun = True

    method = fedbuff if wanted.method == "fedbuff" else fedavg
    reply = method.Client.reply

    @wraps(reply)
    def counted_reply(self: Any, package: Any) -> Any:
        before = counted.count
        answer = reply(self, package)
        told.steps(counted.count - before)  # in whichever process
        return answer

    method.Client.reply = counted_reply
    Path("config.py").write_text(CONFIG.format(images=wanted.load.images))
    benchmark = flgo.gen_benchmark_from_file("fashion", "config.py")
    split = {"name": IIDPartitioner, "para": {"num_clients": DEVICES}}
    flgo.gen_task({"benchmark": {"name": benchmark}, "partitioner": split}, "task")
    flgo.init("task", method, options(wanted), Logger=Ends).run()


if __name__ == "__main__":
    wanted = order()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        run(wanted)
