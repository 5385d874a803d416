"""Words of results and options are enumerations of strings, which are the same in C++ and Python."""

from __future__ import annotations

import json
import pickle
from enum import Enum
from typing import Any

import numpy as np
import pytest

import qkcore as qk
from qkcore._native import cpu


def members(cls: type[Enum]) -> list[str]:
    return [str(member) for member in cls]


def test_the_core_has_the_same_words() -> None:
    assert set(cpu.BRIDGE_STATUS) | set(cpu.FLOW_STATUS) <= set(members(qk.Status))
    assert sorted(cpu.BRIDGE_METHODS) == sorted(members(qk.Solver))
    assert list(cpu.WEIGHTS) == members(qk.Weight)


@pytest.mark.parametrize("cls", [qk.Status, qk.Solver, qk.Weight, qk.RegimeName])
def test_members_are_strings(cls: Any) -> None:
    for member in cls:
        text = member.value
        assert member == text and {text: 1}[member] == 1 and {member: 1}[text] == 1
        assert (str(member), repr(member), f"{member:>20}") == (text, repr(text), f"{text:>20}")
        assert json.loads(json.dumps(member)) == text
        assert pickle.loads(pickle.dumps(member)) is member
        assert np.array([member]).dtype.kind == "U"
    with pytest.raises(ValueError, match="nonsense"):
        cls("nonsense")


def results() -> dict[str, Any]:
    Z = np.random.default_rng(0).normal(size=(4, 4))
    s, eye = qk.scores.dense(Z), np.eye(2)
    field = qk.AttentionField("softmax", Q=eye, K=eye, V=-eye)
    X = np.random.default_rng(1).normal(size=(5, 2))
    return {
        "bridge": qk.bridge(s),
        "infeasible": qk.bridge(s.masked(np.eye(4) > 2), on_fail="ignore"),
        "chain": qk.bridge_chain([s, s], np.full(4, 0.25), np.full(4, 0.25)),
        "semi-relaxed": qk.semi_relaxed(s),
        "flow": qk.flow(field, X, (0.0, 0.1)),
        "law": qk.gaussian.flow("softmax", None, eye, (0.0, 0.1), Q=eye, K=eye, V=-eye, n_steps=4),
        "barycentre": qk.barycenter(qk.scores.distance(X), np.full((1, 5), 0.2), debiased=False),
        "map": qk.isb.barycentric(X, 1.0),
        "ipf": qk.adaptive_ipf(X, X, np.full(5, 0.2), np.full(5, 0.2), on_fail="ignore"),
    }


def test_results_have_statuses() -> None:
    for name, found in results().items():
        assert isinstance(found.status, qk.Status), name
    assert results()["infeasible"].status is qk.Status.INFEASIBLE
    regime = qk.softmax(qk.scores.distance(np.eye(3))).regime()
    assert regime.regime is qk.RegimeName.EQ


def test_members_are_taken_for_their_strings() -> None:
    s = qk.scores.dense(np.zeros((2, 3)))
    assert qk.bridge(s, solver=qk.Solver.NEWTON).method.startswith("newton")
    K = qk.kernel(s + np.ones((2, 3)), qk.Weight.RELU)
    np.testing.assert_array_equal(K.to_numpy(), np.ones((2, 3)))
