"""Ji Liu, Juncheng Jia, Tianshi Che, Chao Huo, Jiaxiang Ren, Yang Zhou, Huaiyu Dai, Dejing Dou: FedASMU: Efficient
asynchronous federated learning with dynamic staleness-aware model update. AAAI 2024.

The server weighs an upload by its staleness, with control parameters learned for each device (server.py); a device asks
once, in the middle of its training, for a fresh global model and merges it, with a weight that is learned too
(device.py), at a moment that is learned by reinforcement (slots.py). The formulas are in formulas.py and carry the
paper's numbers, (1) to (9); settings.py has every setting and the names of the ablations. docs/algorithms/fedasmu.md
lists every departure from the printed paper.
"""

from fedasmu.algorithms.fedasmu.settings import FedASMU

__all__ = ["FedASMU"]
