"""FedASMU bare: the paper's equations in numpy, one server and five devices on a virtual clock, without the framework.

The problem is least squares. (1) to (4) and (7) to (9) are the paper's numbers, read as docs/algorithms/fedasmu.md has
it; devices ask in the middle of their training, where the paper learns when, (5) and (6). The tests hold the framework
to what comes out here. Run it with `python examples/bare_fedasmu.py`.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
SPEEDS = (0.011, 0.017, 0.023, 0.041, 0.067)  # seconds an example, of each device
EXAMPLES, STEPS, SLOT, RATE, PERIOD = 20, 6, 3, 0.05, 1.0  # SLOT: steps done when a device asks; a trigger each PERIOD
LAMBDA, SIGMA, IOTA, MU_ALPHA, GAMMA, UPSILON, MU_BETA = 8.0, 0.5, 0.1, 0.9, 2.0, 1.0, 1.0
LEARN = 0.01  # how fast lambda, sigma, iota, gamma and upsilon are learned
LOOK = 1 / 3  # of a step: what a device's look at its loss before a merge takes


@dataclass
class Device:
    inputs: Vector
    targets: Vector
    seconds: float  # for an example
    gamma: float = GAMMA
    upsilon: float = UPSILON
    controls: Vector = field(default_factory=lambda: np.array([LAMBDA, SIGMA, IOTA]))  # the server's, of this device
    last: tuple[Vector, float, int, float] | None = None  # of its previous upload: direction, R', s', xi'

    def gradient(self, w: Vector) -> Vector:
        return 2 / len(self.targets) * self.inputs.T @ (self.inputs @ w - self.targets)

    def descend(self, w: Vector, steps: int) -> Vector:
        for _ in range(steps):
            w = w - RATE * self.gradient(w)  # (4)
        return w

    def merge(self, w: Vector, fresh: Vector, g: int, o: int) -> tuple[Vector, float]:
        newer, gap = math.sqrt(g), math.sqrt(g - o + 1)
        phi = self.gamma / newer * (1 - self.upsilon / gap)
        beta = MU_BETA * phi / (1 + MU_BETA * phi)  # (8)
        merged = w + beta * (fresh - w)  # (7)
        outer = MU_BETA / (1 + MU_BETA * phi) ** 2 * float(self.gradient(merged) @ (fresh - w))
        by_gamma, by_upsilon = (1 - self.upsilon / gap) / newer, -self.gamma / (newer * gap)
        self.gamma, self.upsilon = (
            self.gamma - LEARN * outer * by_gamma,
            self.upsilon - LEARN * outer * by_upsilon,
        )  # (9)
        return merged, beta


@dataclass
class Task:
    start: Vector  # the model that the device was given, of version o
    o: int
    fresh: Vector  # the one that it merged on the way, by its part beta
    beta: float = 0.0
    upload: Vector = field(default_factory=lambda: np.zeros(0))


@dataclass
class Server:
    w: Vector
    version: int = 0

    def receive(self, device: Device, task: Task) -> None:
        staleness, rounds = self.version - task.o + 1, math.sqrt(self.version + 1)
        if device.last is not None:
            own = task.upload - task.start - task.beta * (task.fresh - task.start)  # what the device's own steps added
            direction, r, s, xi = device.last
            outer = MU_ALPHA / (1 + MU_ALPHA * xi) ** 2 * float(-own / (RATE * STEPS) @ direction)
            lam, sigma, _ = device.controls
            inner = np.array([1 / (r * s**sigma), -lam * math.log(s) / (r * s**sigma), 1.0])
            device.controls = device.controls - LEARN * outer * inner  # (3)
        lam, sigma, iota = device.controls
        xi = lam / (rounds * staleness**sigma) + iota
        alpha = MU_ALPHA * xi / (1 + MU_ALPHA * xi)  # (2)
        device.last = task.upload - self.w, rounds, staleness, xi
        self.w, self.version = (1 - alpha) * self.w + alpha * task.upload, self.version + 1  # (1)


def problem() -> tuple[list[Device], Vector, Vector]:
    """Devices whose data disagree, and inputs and targets to test on."""
    random = np.random.default_rng(0)
    truth = np.array([1.5, -1.0, 0.5])
    devices = []
    for seconds in SPEEDS:
        inputs = random.normal(size=(EXAMPLES, 3)).astype(np.float32).astype(float)
        targets = inputs @ (truth + random.normal(0, 0.3, 3)) + random.normal(0, 0.1, EXAMPLES)
        devices.append(Device(inputs, targets.astype(np.float32).astype(float), seconds))
    inputs = random.normal(size=(200, 3)).astype(np.float32).astype(float)
    return devices, inputs, (inputs @ truth).astype(np.float32).astype(float)


def run(devices: list[Device], uploads: int) -> Server:
    server, tasks, count = Server(np.zeros(3)), dict[int, Task](), 0
    clock = [(0.0, "trigger", -1)]  # when, what and whose
    while count < uploads:
        now, what, number = heapq.heappop(clock)
        if what == "trigger":
            for idle in set(range(len(devices))) - tasks.keys():
                tasks[idle] = Task(server.w, server.version, server.w)
                heapq.heappush(clock, (now + SLOT * EXAMPLES * devices[idle].seconds, "ask", idle))
            heapq.heappush(clock, (now + PERIOD, "trigger", -1))
        elif what == "ask":
            device, task, rest = devices[number], tasks[number], float(STEPS - SLOT)
            w = device.descend(task.start, SLOT)
            if server.version > task.o:
                task.fresh, rest = server.w, rest + LOOK
                w, task.beta = device.merge(w, server.w, server.version, task.o)
            task.upload = device.descend(w, STEPS - SLOT)
            heapq.heappush(clock, (now + rest * EXAMPLES * device.seconds, "upload", number))
        else:
            server.receive(devices[number], tasks.pop(number))
            count += 1
    return server


def main(uploads: int = 60) -> Server:
    devices, inputs, targets = problem()
    server = run(devices, uploads)
    error = float(np.sqrt(np.mean((inputs @ server.w - targets) ** 2)))
    print(f"w = {server.w.round(3)} after {uploads} uploads, error {error:.3f} on the test data")
    return server


if __name__ == "__main__":
    main()
