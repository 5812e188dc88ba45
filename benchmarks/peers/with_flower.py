"""The work in Flower's simulation: one processor a client, the images drawn once in each of Ray's actors."""

from __future__ import annotations

from flower_client import app
from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from work import COHORT, DEVICES, Order, Told, lenet5, order


def server(wanted: Order) -> ServerApp:
    told, made = Told(wanted.report), ServerApp()

    def ended(number: int, _: ArrayRecord) -> None:
        if number:
            told.round()

    @made.main()
    def main(grid: Grid, _: Context) -> None:
        load = wanted.load
        asked = {"epochs": load.epochs, "batch": load.batch, "images": load.images, "report": wanted.report}
        strategy = FedAvg(fraction_train=COHORT / DEVICES, fraction_evaluate=0.0, min_available_nodes=DEVICES)
        strategy.start(
            grid,
            ArrayRecord(lenet5().state_dict()),
            num_rounds=wanted.rounds,
            train_config=ConfigRecord(asked),
            evaluate_fn=ended,
        )

    return made


if __name__ == "__main__":
    wanted = order()
    run_simulation(
        server_app=server(wanted),
        client_app=app,
        num_supernodes=DEVICES,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": wanted.workers, "include_dashboard": False},
        },
    )
