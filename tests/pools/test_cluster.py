"""A real Ray cluster of two nodes on this machine: the same bits as in one process, also when a node dies."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from torch import Tensor, nn

from fedasmu import Experiment, Result, pools
from fedasmu.errors import DeviceError, Interrupted, UserError
from fedasmu.events import Delivered
from fedasmu.pools import connection
from fedasmu.pools.cluster import Actors
from fedasmu.pools.crew import Crew
from fedasmu.server.desk import Desk
from fedasmu.study import remote as remote_runs
from fedasmu.study import variants
from fedasmu.study.board import Board
from fedasmu.study.cells import cells
from fedasmu.study.grid import run as run_grid
from helpers.blobs import blobs, outputs, settings

pytestmark = pytest.mark.xdist_group("cluster")  # one cluster is enough for two cores


class Own(nn.Module):
    """A user's own network, in a file that the nodes cannot import; large enough for its vector to travel alone."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(20, 64), nn.Linear(64, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        if (inputs[:, 0] == 1234).any() and self.training:
            raise SystemExit("this example is poison")
        return self.last(self.inner(inputs).tanh())  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Any]:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    cluster.add_node(num_cpus=1, num_gpus=1)  # as Ray counts: there need be none
    yield cluster
    cluster.shutdown()  # type: ignore[no-untyped-call]


@pytest.fixture
def remote(nodes: Any) -> pools.Factory:
    """A pool on the cluster that computes nothing in this process, however small it is; both nodes are there."""

    def complete(site: pools.Site) -> Crew:
        pool = pools.cluster(replace(site, computes_here=False), nodes.address)
        assert isinstance(pool.workers, Actors)
        while pool.workers.joined < 2:
            pool.workers.heard(0.1)
        return pool

    return complete


def experiment(data: Any = None, uploads: int = 25) -> Experiment:
    table = settings(engine="torch", algorithm={"name": "fedasmu"}, stop={"uploads": uploads}, checkpoint_seconds=1e9)
    return Experiment(table, model=Own, data=data or blobs())


def test_workers_ask_for_their_share_of_a_gpu(nodes: Any) -> None:
    ray, _ = connection.connect(nodes.address)
    assert connection.processors(ray, 0.0) == 2
    assert connection.processors(ray, connection.share(3)) == 1, "the node with the GPU has one processor"
    pool = Actors(pools.Site(pools.timing_only, 4, gpus=connection.share(3)), ray, True)
    while pool.joined < 1:
        pool.heard(0.1)
    assert ray.available_resources()["GPU"] == pytest.approx(0.6667)
    pool.close()


@pytest.mark.parametrize("workers", range(1, 101))
def test_so_many_shares_fit_on_a_gpu(workers: int) -> None:
    assert connection.room(1000, 1, connection.share(workers)) == workers
    assert round(connection.share(workers) * 10_000) * workers <= 10_000


def test_a_failure_on_a_node_shows_the_device(remote: pools.Factory, tmp_path: Path) -> None:
    data = blobs()
    data.train.inputs[data.shards[4][0], 0] = 1234
    with pytest.raises(DeviceError, match=r"(?s)failed on device 4 .*SystemExit: this example is poison"):
        experiment(data).run(tmp_path / "run", workers=remote)


def test_whole_runs_on_the_nodes_leave_the_same_directories(nodes: Any, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        """
        model = "softmax"
        algorithm = "fedavg"
        [data]
        name = "fashion-mnist-small"
        [fleet]
        devices = 20
        [stop]
        uploads = 8
        [evaluate]
        every = 4
        """
    )
    chosen, results = variants.read("fedasync,fedavg"), []
    for workers in ("inline", nodes.address):
        grid = cells(recipe, chosen, [0], tmp_path / f"from-{workers[:3]}")
        assert run_grid(grid, workers, Board(Console())) == []
        results.append([outputs(Result(cell.directory)) for cell in grid])
        assert [cell.stage() for cell in grid] == ["finished"] * 2
    assert results[0] == results[1]


def test_a_stopped_run_goes_on_and_a_node_may_die(nodes: Any, remote: pools.Factory, tmp_path: Path) -> None:
    """The last one on this cluster, which has a single node from then on."""
    expected = outputs(experiment().run(tmp_path / "inline"))
    said: list[str] = []

    def disturb(desk: Desk, line: Any) -> None:
        if isinstance(line, Delivered) and desk.server.counters.received == 5:
            signal.raise_signal(signal.SIGINT)
        if isinstance(line, Delivered) and desk.server.counters.received == 12:
            nodes.remove_node(nodes.list_all_nodes()[-1], allow_graceful=False)

    with pytest.raises(Interrupted):
        experiment().run(tmp_path / "run", workers=remote, observe=disturb)
    result = experiment().run(tmp_path / "run", workers=remote, resume=True, observe=disturb, say=said.append)
    assert outputs(result) == expected
    assert any("a worker on the cluster died, or its node did" in line for line in said)


def test_a_directory_that_travels_arrives_whole(tmp_path: Path) -> None:
    run, copy = tmp_path / "run", tmp_path / "copy"
    (run / "checkpoint").mkdir(parents=True)
    (run / "checkpoint" / "state.json").write_bytes(b"{}")
    copy.mkdir()
    (copy / "old").touch()
    remote_runs.unpack(remote_runs.packed(run), copy)
    assert [path.name for path in copy.rglob("*")] == ["checkpoint", "state.json"]
    remote_runs.unpack(remote_runs.packed(tmp_path / "nothing"), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- what may be wrong with a cluster


def test_no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"workers = 'ray': Ray is not installed; pip install 'fedasmu\[ray\]'"):
        experiment().run(tmp_path / "run", workers="ray")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["127.0.0.1:9", "ray://127.0.0.1:9", "nowhere.invalid:6379"])
def test_no_cluster_at_the_address(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=f"workers = '{address}': no cluster answers there"):
        connection.connect(address)


@pytest.mark.parametrize("address", ["host:", "host:port", ":6379", "ray://host"])
def test_what_is_no_address(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(UserError, match=r"must be ray, ray://host:port or host:port"):
        connection.connect(address)


HERE = {"fedasmu": "0.1.0", "torch": "2.13.0", "processor": "x86_64 with AVX512"}


@pytest.mark.parametrize(("name", "other"), [("fedasmu", "0.0.9"), ("torch", "2.6.0")])
def test_another_version_on_a_node(name: str, other: str) -> None:
    with pytest.raises(UserError, match=f"node far of the cluster has {name} {other}, this machine {HERE[name]}"):
        connection.compare("far", {**HERE, name: other}, HERE, print)


def test_another_processor_on_a_node_is_said() -> None:
    said: list[str] = []
    connection.compare("near", HERE, HERE, said.append)
    assert said == []
    connection.compare("far", {**HERE, "processor": "x86_64 with AVX2"}, HERE, said.append)
    assert "may not give the same bits" in said[0]


def test_a_head_that_cannot_serve_a_client() -> None:
    error = "Initialization failure from server:\nRuntimeError: Starting Ray client server failed. See x\n"
    assert "GRPC_ENABLE_FORK_SUPPORT=0 ray start --head" in connection.refusal(ConnectionAbortedError(error))
    assert connection.refusal(ValueError("two\nlines")) == "lines"


def test_why_a_node_cannot_start_a_worker() -> None:
    assert connection.reason(RuntimeError("... No module named 'fedasmu'\n...")) == "fedasmu is not installed there"
    assert connection.reason(RuntimeError("first\nlast\n")) == "last"
