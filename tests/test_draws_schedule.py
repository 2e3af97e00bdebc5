"""Who is drawn, how many steps, when the penalty grows and when it ends."""

import numpy as np
import pytest

from fedmavg_mpi.applications.evaluation import Evaluation
from fedmavg_mpi.config import StopConfig
from fedmavg_mpi.participation import Sampler
from fedmavg_mpi.schedule import PenaltyContinuation, StopRule, shared_steps


def test_draws_follow_the_sizes_with_replacement():
    sizes = np.array([1, 2, 5, 12])
    sampler = Sampler(sizes, 3, "pcc", 0)
    draws = np.array([sampler.draw(s).draws for s in range(1, 4001)])
    shares = np.bincount(draws.ravel(), minlength=4) / draws.size
    np.testing.assert_allclose(shares, sizes / 20, atol=0.02)
    assert any(len(set(row)) < 3 for row in draws)


def test_a_client_drawn_twice_counts_twice_and_uploads_once():
    draw = Sampler(np.array([1, 1, 100, 1, 1, 1]), 5, "pcp", 3).draw(1)
    assert draw.clients.size < 5
    assert draw.weights.sum() == pytest.approx(1) and len(set(draw.clients)) == draw.clients.size
    for client, weight in zip(draw.clients, draw.weights, strict=True):
        assert weight == (draw.draws == client).sum() / 5
    assert (draw.updating == draw.clients).all()


@pytest.mark.parametrize("m", [0, 4, 9])
def test_with_m_at_least_p_all_take_part_once(m):
    draw = Sampler(np.array([1, 2, 3, 4]), m, "pcp", 0).draw(7)
    assert draw.draws.tolist() == draw.clients.tolist() == draw.updating.tolist() == [0, 1, 2, 3]
    np.testing.assert_allclose(draw.weights, [0.1, 0.2, 0.3, 0.4])


def test_steps_on_w():
    assert [shared_steps("diminishing", 10, s) for s in (1, 2, 3, 10, 11, 500)] == [11, 6, 4, 2, 1, 1]
    assert [shared_steps("constant", 10, s) for s in (1, 500)] == [10, 10]


def decide(rule, values, rho=1.0, changed=1):
    """The decisions on a series of objectives, up to the end."""
    for s, value in enumerate(values):
        decision = rule.decide(s, rho, Evaluation(lambda _, value=value: value, changed))
        if decision.stop_reason:
            return s, decision.stop_reason
    return None, None


def test_stop_rule():
    assert decide(StopRule(StopConfig(max_rounds=9, rel_tol=1e-3)), [8.0, 4.0, 3.9999, 1.0]) == (2, "objective settled")
    assert decide(StopRule(StopConfig(max_rounds=2)), [8.0, 4.0, 2.0, 1.0]) == (2, "round limit")
    assert decide(StopRule(StopConfig()), [8.0, float("nan")]) == (1, "objective not finite")
    assert decide(StopRule(StopConfig()), [0.0, 0.0]) == (1, "objective settled")


def test_relative_change_is_by_round():
    rule = StopRule(StopConfig(rel_tol=1e-2))
    assert rule.relative_change(0, 1.0) is None
    assert rule.relative_change(10, 0.9) == pytest.approx(0.01)


def test_penalty_grows_when_the_objective_has_settled_or_after_200_rounds():
    rule = PenaltyContinuation(StopConfig(max_rounds=10**6), rho_max=1.2)
    rho, raised = 0.5, []
    for s in range(1000):
        # falls fast for ever, so that only the rounds end a stage
        decision = rule.decide(s, rho, Evaluation(lambda _, s=s: 0.99**s, 1))
        assert decision.stop_reason is None
        if decision.rho != rho:
            raised.append((s, decision.rho))
        rho = decision.rho
    assert raised == [(200, 0.75), (400, 1.125), (600, 1.2)]


def test_stop_when_a_whole_stage_changed_no_cluster():
    rule = PenaltyContinuation(StopConfig(max_rounds=10**6), rho_max=100)
    assert rule.decide(0, 1.0, Evaluation(lambda rho: 1.0, 5)).stop_reason is None
    raised = rule.decide(1, 1.0, Evaluation(lambda rho: rho, 5))
    assert raised.rho == 1.5 and raised.stop_reason is None
    # under the new penalty the same point is worth 1.5, so this is a settled objective
    assert rule.decide(2, 1.5, Evaluation(lambda rho: rho, 0)).stop_reason == "clusters settled"
