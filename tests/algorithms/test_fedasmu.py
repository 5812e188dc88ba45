"""FedASMU formula by formula: hand-worked numbers, finite differences, toys with a known gradient, limit cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedasmu import training
from fedasmu.algorithms import Federation, settings
from fedasmu.algorithms.fedasmu import FedASMU, formulas
from fedasmu.algorithms.fedasmu.formulas import DeviceControls, Guard, ServerControls, own_displacement
from fedasmu.algorithms.fedasmu.notes import MergeNote, SlotBrief
from fedasmu.algorithms.fedasmu.server import StalenessAware
from fedasmu.encoding.note import table
from fedasmu.protocol import Fetch, Model, Probe, Probed, Report, Task, Train, Trained, Upload, Workload
from fedasmu.roster import Member, Roster, Seconds
from fedasmu.session import Step, Work
from fedasmu.storage.shelf import Shelf
from fedasmu.vector import BLOCK, Entry, Layout
from helpers.blobs import Run, blobs, outputs

AUTHORS = ServerControls(lam=1.0, sigma=0.5, iota=0.1)


def method_of(table: dict[str, Any]) -> FedASMU:
    made = settings(table)
    assert isinstance(made, FedASMU)
    return made


def alpha(controls: ServerControls, version: int, staleness: float, mu: float = 0.9) -> float:
    return formulas.squash(mu, formulas.xi(controls, formulas.round_term(version), staleness))


def beta(controls: DeviceControls, fresh: int, origin: int, mu: float = 1.0) -> float:
    return formulas.squash(mu, formulas.phi(controls, fresh, origin))


@pytest.mark.parametrize(
    ("version", "staleness", "value"),
    [(0, 1, 0.4975), (0, 10, 0.273), (100, 1, 0.152), (100, 10, 0.106), (1000, 1, 0.106), (1000, 10, 0.090)],
)
def test_alpha_on_known_numbers(version: int, staleness: int, value: float) -> None:
    assert alpha(AUTHORS, version, staleness) == pytest.approx(value, abs=6e-4)


def test_iota_alone_decides_alpha_in_the_long_run() -> None:
    assert alpha(AUTHORS, 10**12, 5) == pytest.approx(0.09 / 1.09, rel=1e-4)


@pytest.mark.parametrize(
    ("fresh", "gap", "value"), [(10, 10, 0.3019), (100, 10, 0.120), (1000, 10, 0.041), (5000, 10, 0.019), (7, 1, 0.0)]
)
def test_beta_on_known_numbers(fresh: int, gap: int, value: float) -> None:
    assert beta(DeviceControls(2.0, 1.0), fresh, fresh - gap + 1) == pytest.approx(value, abs=6e-4)


def test_the_round_term_never_divides_by_zero() -> None:
    assert formulas.round_term(0) == 1.0
    assert formulas.round_term(3) == 2.0
    assert formulas.round_term(0, printed=True) == 1.0
    assert formulas.round_term(4, printed=True) == 2.0


def slope(function: Callable[[float], float], at: float, step: float = 1e-6) -> float:
    return (function(at + step) - function(at - step)) / (2 * step)


@pytest.mark.parametrize("controls", [AUTHORS, ServerControls(3.0, 1.3, 0.02)])
@pytest.mark.parametrize(("version", "staleness"), [(0, 1.0), (17, 4.0), (300, 12.5)])
def test_derivatives_of_alpha_against_finite_differences(
    controls: ServerControls, version: int, staleness: float
) -> None:
    rounds, mu = formulas.round_term(version), 0.9
    outer = formulas.squash_slope(mu, formulas.xi(controls, rounds, staleness))
    inner = formulas.xi_gradient(controls, rounds, staleness)
    lam, sigma, iota = controls.lam, controls.sigma, controls.iota
    numeric = [
        slope(lambda x: alpha(ServerControls(x, sigma, iota), version, staleness), lam),
        slope(lambda x: alpha(ServerControls(lam, x, iota), version, staleness), sigma),
        slope(lambda x: alpha(ServerControls(lam, sigma, x), version, staleness), iota),
    ]
    assert [outer * part for part in inner] == pytest.approx(numeric, rel=1e-5, abs=1e-9)


def test_the_printed_sigma_derivative_is_another_one() -> None:
    """The paper has ln(sigma) without lambda: even its sign is wrong for sigma below 1, and it is not 0 when fresh."""
    right = formulas.xi_gradient(AUTHORS, 2.0, 4.0)[1]
    printed = formulas.xi_gradient(AUTHORS, 2.0, 4.0, printed=True)[1]
    assert right == pytest.approx(-1.0 * math.log(4.0) / (2.0 * 2.0))
    assert printed == pytest.approx(-math.log(0.5) / (2.0 * 2.0))
    assert right < 0 < printed
    assert formulas.xi_gradient(AUTHORS, 2.0, 1.0)[1] == 0.0


@pytest.mark.parametrize(("fresh", "origin"), [(1, 0), (10, 3), (500, 480)])
def test_derivatives_of_beta_against_finite_differences(fresh: int, origin: int) -> None:
    controls, mu = DeviceControls(3.0, 0.6), 1.0
    outer = formulas.squash_slope(mu, formulas.phi(controls, fresh, origin))
    numeric = [
        slope(lambda x: beta(DeviceControls(x, 0.6), fresh, origin), 3.0),
        slope(lambda x: beta(DeviceControls(3.0, x), fresh, origin), 0.6),
    ]
    assert [outer * part for part in formulas.phi_gradient(controls, fresh, origin)] == pytest.approx(numeric, rel=1e-5)


def test_a_guard_bounds_step_and_value_and_passes_over_what_is_not_finite() -> None:
    guard = Guard(0.0, 1.0, step=0.1)
    assert guard.moved(0.5, 0.01, 2.0) == pytest.approx(0.48)
    assert guard.moved(0.5, 1.0, -9.0) == pytest.approx(0.6)
    assert guard.moved(0.05, 1.0, 9.0) == 0.0
    assert guard.moved(0.5, 1.0, math.nan) == 0.5
    assert formulas.UNGUARDED.moved(0.5, 1.0, 9.0) == -8.5


def test_an_interpolated_version_lies_between_origin_and_fresh() -> None:
    assert formulas.interpolated_version(origin=10, fresh=20, merged_after=3, steps=12) == pytest.approx(17.5)


def federation(size: int, tmp_path: Path, epochs: int = 3) -> Federation:
    return Federation(
        seed=0,
        roster=Roster(Member(10, Seconds(1.0, 10.0 + device, 2.0)) for device in range(3)),
        layout=Layout((Entry("weight", (size,), 0),), ()),
        limit=2,
        budget=100,
        batch=5,
        epochs=epochs,
        shelf=Shelf(tmp_path / "shelf"),
    )


def upload(base: Model, vector: Tensor, staleness: int, fresh: Model | None = None, **note: Any) -> Upload:
    return Upload(0, 1, base, fresh, staleness, Report(vector, 10, 0.0, note), lr=1 / 6, note=MergeNote(**note))


@pytest.mark.parametrize("update", ["model", "displacement"])
@pytest.mark.parametrize("parameter", ["lambda", "sigma", "iota"])
def test_a_control_step_descends_the_loss_through_the_previous_upload(
    update: str, parameter: str, tmp_path: Path
) -> None:
    """The whole chain: how F(w_o) would have changed with the device's controls when its last upload was merged."""
    optimum = torch.tensor([0.3, -0.8, 1.5, 0.1], dtype=torch.float64)
    start = Model(5, torch.tensor([1.0, -2.0, 0.5, 3.0]))
    base = Model(2, torch.tensor([0.9, -1.5, 0.1, 2.0]))
    sent = torch.tensor([0.2, -1.0, 1.2, 0.7])
    rate = 1e-3
    method = method_of(
        {
            "name": "fedasmu",
            "lambda0": 1.0,
            "update": update,
            "record": "float32",
            "server_gradient": "uploaded",
            "merge": False,
            f"lr_{parameter}": rate,
        }
        | {f"lr_{other}": 0.0 for other in ("lambda", "sigma", "iota") if other != parameter}
    )

    def merged(changed: float) -> Tensor:
        names = {"lambda": "lambda0", "sigma": "sigma0", "iota": "iota0"}
        moved = method.model_copy(update={names[parameter]: getattr(method, names[parameter]) + changed})
        aggregator = StalenessAware(moved, federation(4, tmp_path / str(changed)))
        return aggregator.aggregate(start, [upload(base, sent, 4)]).vector.double()

    def loss(vector: Tensor) -> float:
        return float(0.5 * ((vector - optimum) ** 2).sum())

    numeric = (loss(merged(1e-2)) - loss(merged(-1e-2))) / 2e-2
    aggregator = StalenessAware(method, federation(4, tmp_path / "real"))
    aggregator.aggregate(start, [upload(base, sent, 4)])
    received = Model(6, merged(0.0).float())
    gradient = (received.vector.double() - optimum).float()
    aggregator.aggregate(received, [upload(received, received.vector, 1, gradient=gradient)])
    before, after = method.server_controls, aggregator.controls[1]
    name = {"lambda": "lam"}.get(parameter, parameter)
    assert getattr(after, name) - getattr(before, name) == pytest.approx(-rate * numeric, rel=2e-3)


@pytest.mark.parametrize("correction", [True, False])
def test_the_projection_is_the_product_of_whole_vectors_block_by_block(correction: bool) -> None:
    """Of a vector that has three blocks, and a tail that is not trainable."""
    random, trainable = torch.Generator().manual_seed(3), 2 * BLOCK + 17
    base, fresh, reached = (torch.randn(trainable + 5, generator=random) for _ in range(3))
    previous = torch.randn(trainable, generator=random).half()
    note = MergeNote(beta=0.3, merged_after=1)
    sent = Upload(0, 0, Model(0, base), Model(2, fresh), 3, Report(reached, 10), lr=0.1, note=note)
    moved = reached - base - 0.3 * correction * (fresh - base)
    expected = -(moved[:trainable].double() @ previous.double()) / 0.7
    assert formulas.projection(sent, previous, 0.7, correction) == pytest.approx(float(expected), rel=1e-4)


def test_the_gradient_estimate_has_the_gradients_sign_and_size() -> None:
    """SGD on a quadratic: the displacement over the sum of step sizes tends to the true gradient, not to minus it."""
    curvature, optimum = torch.tensor([1.0, 0.5, 2.0]), torch.tensor([1.0, -1.0, 0.2])
    base = Model(0, torch.tensor([3.0, 2.0, -1.0]))
    rate, steps, vector = 1e-4, 10, base.vector.clone()
    for _ in range(steps):
        vector = vector - rate * curvature * (vector - optimum)
    truth = curvature * (base.vector - optimum)
    moved = own_displacement(upload(base, vector, 1))
    assert torch.allclose(moved * formulas.gradient_scale(rate * steps), truth, rtol=5e-3)
    assert torch.allclose(moved * formulas.gradient_scale(rate * steps, printed=True), -truth, rtol=5e-3)


def test_the_merge_is_taken_out_of_the_displacement() -> None:
    """A linear loss has the same gradient everywhere, so what SGD added is known: (1 - beta) D1 + D2."""
    gradient = torch.tensor([0.5, -2.0, 1.0])
    base, fresh = Model(3, torch.tensor([1.0, 1.0, 1.0])), Model(9, torch.tensor([4.0, -3.0, 0.0]))
    rate, before, after, weight = 0.1, 4, 6, 0.3
    vector = base.vector - rate * before * gradient
    vector = (1 - weight) * vector + weight * fresh.vector
    vector = vector - rate * after * gradient
    truth = -rate * gradient * ((1 - weight) * before + after)
    sent = upload(base, vector, 7, fresh, beta=weight)
    assert torch.allclose(own_displacement(sent), truth, atol=1e-6)
    polluted = own_displacement(sent, correction=False)
    assert torch.allclose(polluted - truth, weight * (fresh.vector - base.vector), atol=1e-6)


def test_the_displacement_form_adds_only_what_the_device_added(tmp_path: Path) -> None:
    base, current = Model(0, torch.tensor([0.0, 0.0])), Model(4, torch.tensor([10.0, 10.0]))
    method = method_of({"name": "fedasmu-d", "merge": False, "lambda0": 0.0, "iota0": 1.0, "mu_alpha": 1.0})
    aggregator = StalenessAware(method, federation(2, tmp_path))
    result = aggregator.aggregate(current, [upload(base, torch.tensor([1.0, -2.0]), 5)])
    assert result.weights == [0.5]
    assert torch.equal(result.vector, torch.tensor([10.5, 9.0]))  # not dragged towards the base


def test_dilution_shrinks_what_foreign_uploads_have_overwritten(tmp_path: Path) -> None:
    moves = {}
    for dilution in (False, True):
        method = method_of(
            {"name": "fedasmu-fa", "record": "float32", "dilution": dilution, "lambda0": 0.0, "iota0": 1.0}
            | {"server_gradient": "uploaded"}
        )
        aggregator = StalenessAware(method, federation(2, tmp_path / str(dilution)))
        first = aggregator.aggregate(Model(0, torch.zeros(2)), [upload(Model(0, torch.zeros(2)), torch.ones(2), 1)])
        model = Model(1, first.vector)
        foreign = Upload(1, 2, model, None, 1, Report(torch.zeros(2), 10), lr=1 / 6, note=MergeNote())
        second = aggregator.aggregate(model, [foreign])
        model = Model(2, second.vector)
        aggregator.brief(1)
        aggregator.aggregate(model, [upload(model, model.vector, 1, gradient=torch.ones(2))])
        moves[dilution] = aggregator.controls[1].iota - 1.0
    assert moves[True] == pytest.approx(moves[False] * (1 - 0.9 / 1.9), rel=1e-6)


def test_in_the_displacement_form_nothing_is_diluted(tmp_path: Path) -> None:
    """w_{k+1} = w_k + alpha_k d_k: how w_o changes with alpha_v is d_v, whatever came after."""
    moves, start = [], Model(0, torch.zeros(2))
    for dilution in (False, True):
        method = method_of(
            {"name": "fedasmu-d", "merge": False, "record": "float32", "dilution": dilution}
            | {"server_gradient": "uploaded"}
        )
        aggregator = StalenessAware(method, federation(2, tmp_path / str(dilution)))
        aggregator.aggregate(start, [upload(start, torch.ones(2), 1)])
        foreign = Upload(1, 2, start, None, 2, Report(torch.ones(2), 10), lr=1 / 6, note=MergeNote())
        aggregator.aggregate(Model(1, torch.zeros(2)), [foreign])
        model = Model(2, torch.zeros(2))
        aggregator.aggregate(model, [upload(model, model.vector, 1, gradient=torch.ones(2))])
        moves.append(aggregator.controls[1].iota)
    assert moves[0] == moves[1] < 0.1


def test_what_dilutes_is_counted_from_when_the_task_began(tmp_path: Path) -> None:
    """A foreign upload that comes while a device trains has not touched the model that the device was sent."""
    moves = {}
    for before in (False, True):
        method = method_of(
            {"name": "fedasmu-fa", "record": "float32", "dilution": True, "lambda0": 0.0, "iota0": 1.0}
            | {"server_gradient": "uploaded"}
        )
        aggregator = StalenessAware(method, federation(2, tmp_path / str(before)))
        start = Model(0, torch.zeros(2))
        first = Model(1, aggregator.aggregate(start, [upload(start, torch.ones(2), 1)]).vector)
        foreign = Upload(1, 2, first, None, 1, Report(torch.zeros(2), 10), lr=1 / 6, note=MergeNote())
        if before:
            aggregator.brief(1)
        second = Model(2, aggregator.aggregate(first, [foreign]).vector)
        if not before:
            aggregator.brief(1)
        again = StalenessAware(method, federation(2, tmp_path / str(before)))
        again.shelf = aggregator.shelf
        again.restore(aggregator.state())
        base = first if before else second
        again.aggregate(second, [upload(base, base.vector, 1, gradient=torch.ones(2))])
        moves[before] = again.controls[1].iota - 1.0
    assert moves[False] == pytest.approx(moves[True] * (1 - 0.9 / 1.9), rel=1e-6)


@pytest.mark.parametrize("dilution", [False, True])
def test_the_state_does_not_grow_with_the_versions(tmp_path: Path, dilution: bool) -> None:
    aggregator = StalenessAware(method_of({"name": "fedasmu-fa", "dilution": dilution}), federation(2, tmp_path))
    sizes = set()
    for version in range(20):
        model = Model(version, torch.zeros(2))
        aggregator.brief(1)
        aggregator.aggregate(model, [upload(model, torch.ones(2), 1)])
        state = aggregator.state()
        assert isinstance(state["log_dilution"], float)
        sizes.add((len(state["begun"]), len(state["records"])))
    assert sizes == {(int(dilution), 1)}


def test_an_interpolated_version_makes_a_merged_upload_fresher() -> None:
    sent = upload(Model(0, torch.zeros(2)), torch.ones(2), 11, Model(9, torch.zeros(2)), beta=0.2, merged_after=2)
    assert formulas.effective_staleness(sent, steps=6) == pytest.approx(11 - 9 * 4 / 6)  # merged after 2 of 6 steps


GRADIENT = torch.tensor([1.0, 2.0, -1.0])  # wherever a device probes it


def probed(command: Probe) -> Probed:
    if command.between is not None:
        return Probed(0.5, slope=training.slope(GRADIENT, *command.between))
    return Probed(0.5, GRADIENT) if command.gradient else Probed(2.0)


def drive(
    method: FedASMU, memory: dict[str, Any], fresh: Model | None, slot: int | None = 3, origin: int = 4
) -> tuple[list[Any], Report]:
    """Run one session by hand: training adds 1, the loss before a merge is 2 and after it 0.5."""
    task = Task(7, 0, Model(origin, torch.zeros(3)), lr=0.1, seed=11, note=table(SlotBrief(slot)))
    work, commands = Work(task, method.learner().train(task, Workload(10, 5, 3), memory)), list[Any]()
    command: Step = work.begin()
    reply: Trained | Probed | Model | None
    while not isinstance(command, Report):
        commands.append(command)
        if isinstance(command, Train):
            reply = Trained(command.vector + 1.0, 1.0)
        elif isinstance(command, Probe):
            reply = probed(command)
        else:
            reply = fresh
        command = work.reply(reply)
    return commands, command


def test_a_device_trains_asks_merges_and_trains_on() -> None:
    memory: dict[str, Any] = {}
    commands, report = drive(FedASMU(gamma0=3.0, upsilon0=0.5), memory, Model(9, torch.full((3,), 5.0)))
    assert [type(command) for command in commands] == [Train, Fetch, Probe, Probe, Train]
    assert (commands[0].steps, commands[4].steps) == (range(3), range(3, 6))
    weight = beta(DeviceControls(3.0, 0.5), 9, 4)
    assert report.note["beta"] == pytest.approx(weight)
    assert torch.allclose(commands[4].vector, torch.full((3,), 1.0 + weight * 4.0))
    assert report.note["reward"] == 1.5
    assert memory["slot"] == 3
    # q = <grad, w_g - w_before> = 4 (1 + 2 - 1) = 8, and the chain's outer and inner slopes
    outer = 8.0 / (1 + formulas.phi(DeviceControls(3.0, 0.5), 9, 4)) ** 2
    inner = formulas.phi_gradient(DeviceControls(3.0, 0.5), 9, 4)
    assert memory["gamma"] == pytest.approx(3.0 - 1e-4 * outer * inner[0])
    assert memory["upsilon"] == pytest.approx(0.5 - 1e-4 * outer * inner[1])


@pytest.mark.parametrize(
    ("upsilon", "gamma", "fresh", "origin"), [(4.0, 2.0, 1, 0), (3.0, 4.0, 4, 1), (1.5, 2.0, 2, 1)]
)
def test_a_model_that_is_not_new_enough_is_not_merged(upsilon: float, gamma: float, fresh: int, origin: int) -> None:
    """phi is -3.66 (beyond the pole at -1: a fraction above 1), -1 exactly (a division by zero) and -0.09."""
    memory: dict[str, Any] = {}
    method = FedASMU(upsilon0=upsilon, gamma0=gamma, lr_upsilon=0.01)
    commands, report = drive(method, memory, Model(fresh, torch.full((3,), 5.0)), origin=origin)
    assert report.note["beta"] == 0.0
    assert torch.equal(commands[4].vector, torch.ones(3))
    # The slope is taken at 0, so that upsilon may come back: q = 8, d phi / d upsilon = -gamma / sqrt(g (g - o + 1))
    inner = -gamma / math.sqrt(fresh * (fresh - origin + 1))
    assert memory["upsilon"] == pytest.approx(upsilon - max(-0.1, 0.01 * 8.0 * inner))


def test_a_device_that_lost_its_memory_asks_in_the_middle() -> None:
    """The server knows that it has asked before, and offers no slot; its own table is gone."""
    memory: dict[str, Any] = {}
    commands, report = drive(FedASMU(), memory, Model(9, torch.full((3,), 5.0)), slot=None)
    assert commands[0].steps == range(3)
    assert (report.note["slot"], memory["slot"]) == (3, 3)


def test_nothing_newer_means_no_merge_no_reward_and_nothing_learned() -> None:
    memory: dict[str, Any] = {"slot": 2, "gamma": 1.0, "upsilon": 1.0}
    commands, report = drive(FedASMU(epsilon=0.0), memory, None)
    assert [type(command) for command in commands] == [Train, Fetch, Train]
    assert "reward" not in report.note
    assert memory["slot"] == 2


def test_the_table_moves_the_slot_after_the_first_merge() -> None:
    memory: dict[str, Any] = {"slot": 2, "q": {"2": [0.0, 0.0, 1.0]}, "gamma": 2.0, "upsilon": 1.0}
    commands, _ = drive(FedASMU(epsilon=0.0), memory, Model(9, torch.ones(3)))
    assert commands[0].steps == range(3)
    assert memory["slot"] == 3
    assert memory["q"]["2"][2] == pytest.approx(1.0 + 0.1 * (1.5 - 1.0))


@pytest.mark.parametrize(("slots", "cut"), [("first", 1), ("middle", 3), ("last", 5), ("fixed", 4)])
def test_fixed_slots_are_the_same_interface(slots: str, cut: int) -> None:
    commands, _ = drive(FedASMU(slots=slots, fixed_slot=4), {}, None)
    assert commands[0].steps == range(cut)


def test_slots_in_epochs_cut_at_epoch_boundaries() -> None:
    commands, _ = drive(FedASMU(slots="last", slot_unit="epoch"), {}, None)
    assert commands[0].steps == range(4)  # 2 of 3 epochs of 2 steps


def test_the_authors_order_learns_before_it_merges() -> None:
    memory: dict[str, Any] = {}
    method = method_of({"name": "fedasmu-authors", "lr_gamma": 0.01})
    assert isinstance(method, FedASMU)
    commands, report = drive(method, memory, Model(9, torch.full((3,), 5.0)))
    assert [type(command) for command in commands] == [Probe, Train, Fetch, Probe, Probe, Probe, Train]
    assert report.note["gradient"].tolist() == [1.0, 2.0, -1.0]
    assert report.extra_bytes == 12
    assert report.note["beta"] == pytest.approx(beta(DeviceControls(memory["gamma"], memory["upsilon"]), 9, 4))


def test_constant_alpha_when_nothing_is_learned_and_lambda_is_zero(run: Run) -> None:
    frozen = {f"lr_{name}": 0.0 for name in ("lambda", "sigma", "iota", "gamma", "upsilon")}
    result = run(algorithm={"name": "fedasmu", "lambda0": 0.0, "iota0": 0.5, **frozen})
    found = {weight for event in result.events if event["event"] == "version" for weight in event["weights"]}
    assert found == {0.45 / 1.45}


def test_without_merge_and_dynamic_weights_it_is_fedasync_with_a_bound(run: Run) -> None:
    ours = run(algorithm={"name": "fedasmu-0", "max_staleness": 3}, pacing={"count": 3})
    theirs = run(algorithm={"name": "fedasync", "rho": 0.0, "max_staleness": 3}, pacing={"count": 3})
    assert ours.summary["stale"] > 0
    assert outputs(ours)["model.safetensors"] == outputs(theirs)["model.safetensors"]
    assert outputs(ours)["metrics.csv"] == outputs(theirs)["metrics.csv"]


def test_fa_with_frozen_controls_has_fedasyncs_shape_in_staleness() -> None:
    """With iota = 0 and small mu, alpha falls with staleness as the polynomial of FedAsync does."""
    controls = ServerControls(1.0, 0.5, 0.0)
    ratio = alpha(controls, 50, 9, mu=1e-6) / alpha(controls, 50, 1, mu=1e-6)
    assert ratio == pytest.approx(9**-0.5, rel=1e-4)


def test_it_converges_where_the_optimum_is_known(run: Run) -> None:
    result = run(algorithm={"name": "fedasmu"}, stop={"uploads": 200})
    data = blobs()
    held = torch.cat(list(data.shards))
    inputs, targets = data.train.batch(held)
    weight, bias = result.state_dict["weight"], result.state_dict["bias"]
    reached = torch.nn.functional.cross_entropy(inputs @ weight.T + bias, targets)
    assert reached < 0.05
    assert result.accuracy > 0.95


def test_merges_happen_and_are_recorded(run: Run) -> None:
    events = [event for event in run(algorithm={"name": "fedasmu"}).events if event["event"] == "upload"]
    merged = [event for event in events if "reward" in event]
    assert len(merged) > 10
    assert all(event["slot"] >= 1 and 0 <= event["beta"] <= 0.95 for event in merged)


def test_every_name_is_a_setting_of_the_one_class() -> None:
    for name in FedASMU.names():
        method = method_of({"name": name})
        assert isinstance(method, FedASMU)
        assert method.name == name
