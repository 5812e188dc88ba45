"""The paper's bound by hand, the gradients and constants of softmax regression, and the study on a tiny size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fedasmu.study import theorem
from fedasmu.study.bound import Constants, SoftmaxRegression, printed, rate_of, summed

KNOWN = Constants(smoothness=2.0, gradient=3.0, variance=0.5, weight=0.1, steps=4, fall=1.0)


def test_both_bounds_by_hand() -> None:
    """T = 100, eta = 0.1, tau = 2: first 2 / (0.1 * 0.1 * 100 * 4) = 0.5; 17 / 2 * 2 * 0.1 = 1.7, or a tenth of it."""
    rest = 6 + 2 * 4 * 0.1 * 4 + 0.2 + 0.2
    assert printed(KNOWN, 100, 0.1, 2) == pytest.approx(0.5 + ((1.7 + rest) * 3 + 0.5) / 100)
    assert summed(KNOWN, 100, 0.1, 2) == pytest.approx(0.5 + (0.17 + rest) * 3 + 0.5)


def test_the_summed_bound_is_weaker_than_its_own_assumption() -> None:
    """3 tau G^2 alone is more than G^2, which bounds every gradient of F already."""
    assert summed(KNOWN, 10**9, rate_of(10**9), 1) > KNOWN.gradient


def problem() -> SoftmaxRegression:
    generator = torch.Generator().manual_seed(0)
    return SoftmaxRegression(
        torch.randn((12, 2, 2), generator=generator), torch.randint(3, (12,), generator=generator), 3
    )


def test_the_gradient_against_finite_differences() -> None:
    ours, generator = problem(), torch.Generator().manual_seed(1)
    ours.inputs, ours.wanted = ours.inputs.double(), ours.wanted.double()
    vector = torch.randn(3 * 4 + 3, generator=generator, dtype=torch.float64)
    for place in range(len(vector)):
        nudge = torch.zeros_like(vector)
        nudge[place] = 1e-5
        numeric = (ours.loss(vector + nudge) - ours.loss(vector - nudge)) / 2e-5
        assert float(ours.gradient(vector)[place]) == pytest.approx(numeric, abs=1e-6)


def test_the_gradient_is_that_of_the_network() -> None:
    from fedasmu import models
    from fedasmu.vector import Layout

    ours = problem()
    network = models.build("softmax", shape=(2, 2), classes=3, seed=0)
    vector = Layout.of(network).read(network)
    loss = torch.nn.functional.cross_entropy(network(ours.inputs[:, :-1].view(12, 2, 2)), ours.targets)
    loss.backward()  # type: ignore[no-untyped-call]
    theirs = torch.cat([parameter.grad.flatten() for parameter in network.parameters() if parameter.grad is not None])
    assert torch.allclose(ours.gradient(vector), theirs, atol=1e-6)


def test_no_gradient_changes_faster_than_the_smoothness_says() -> None:
    ours, generator = problem(), torch.Generator().manual_seed(2)
    for _ in range(50):
        one, other = torch.randn((2, 15), generator=generator)
        change = (ours.gradient(one) - ours.gradient(other)).norm()
        assert float(change) <= ours.smoothness * float((one - other).norm()) * (1 + 1e-5)


def test_a_tiny_study(tmp_path: Path) -> None:
    found = theorem.points([0], steps=(2,), bounds=(3, 99))
    assert [(one.steps, one.staleness) for one in found] == [(2, 3), (2, 99)]
    strict, loose = found
    assert strict.rounds < loose.rounds == 64
    for one in found:
        assert 0 < one.least <= one.mean < one.constants.gradient < one.printed < one.summed
        assert one.constants.fall > 0
    theorem.draw(found, tmp_path / "theorem.png")
    assert (tmp_path / "theorem.png").stat().st_size > 5000
    assert "2 steps, tau = 99" in theorem.table(found).markdown()
