"""Any activation, readout and loss: averages over nodes."""

from __future__ import annotations

from typing import Annotated

import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from jaxtyping import Array, Float

from sgdlimits.checks import instance
from sgdlimits.domain import checked
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.field_means import FieldNodes, field_mean
from sgdlimits.expectation.gaussian import Nodes, Rule
from sgdlimits.expectation.gaussian.base import no_turns, square_root
from sgdlimits.expectation.slopes import FrameNodes, gradient_over_nodes, is_smooth, pad_units, slopes_at_nodes
from sgdlimits.expectation.symmetries import symmetries
from sgdlimits.statistics.frame import FieldFactor
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import repeat_for_samples

MAX_NODES_AT_ONCE = 2**19
MOST_RUNS = 64


@checked
class NodeSums(Expectation):
    """Any activation, readout and loss: averages of the one-sample quantities over the nodes of a `Rule`.

    The nodes of drift and covariance have the symmetries of the model (see `symmetries`). The risk, one number, has all
    points of the rule instead of orbits, and depends on the overlaps alone, however these are factored. Moments and risk are
    differentiated as expectations, not as sums (see `field_means`).
    """

    rule: Annotated[
        Rule, instance("sgdlimits.expectation.gaussian.base", "Rule", "a rule of nodes", "Give, for instance, Sobol(12).")
    ]

    def tolerance(self, model):
        return self.rule.tolerance

    def accuracy(self, model):
        return self.rule.accuracy

    @property
    def remedy(self):
        return self.rule.remedy

    def finer(self):
        rule = self.rule.finer()
        return None if rule is None else NodeSums(rule)

    def runs_at_once(self, model):
        return max(1, min(MOST_RUNS, MAX_NODES_AT_ONCE // self._nodes(model).weights.size))

    def moments(self, model, a, law):
        return _mean(_products, model, a, law, self._nodes(model))

    def error(self, model, a, law):
        F, dim, group = _factor(law), self._dim(model), symmetries(model)
        return law.over_classes(lambda c: self.rule.error(self._sample(model, a, law, F, c), dim, group))

    def covariance(self, model, a, law, increment):
        F, nodes = _factor(law), self._nodes(model)

        def moments(c):
            change = increment(self._sample(model, a, law, F, c)(nodes.points))
            weighted = change * nodes.weights
            return weighted.sum(1), weighted @ change.T

        mean, raw = law.over_classes(moments)
        return raw - mean[:, None] * mean

    def risk(self, model, a, law):
        return _mean(_loss, model, a, law, self.rule.nodes(self._dim(model), no_turns(self._dim(model))))

    def risk_of_factor(self, model, a, law):
        """That of the overlaps: the factor outside the frame is turned into the symmetric root, without squaring it."""
        k, F = model.teachers, law.factor
        vectors, values, _ = jnp.linalg.svd(F.student[:, k:], full_matrices=False)
        student = jnp.hstack([F.student[:, :k], (vectors * values) @ vectors.T])
        turned = FieldFactor(student, F.fixed[:, : student.shape[1]])
        dim = self._dim(model)
        return law.over_classes(lambda c: self.rule.average(self._loss_at(model, a, law, turned, c), dim, no_turns(dim)))

    def risk_error(self, model, a, law):
        """An estimate of the error of the risk."""
        F, dim = _factor(law), self._dim(model)
        return law.over_classes(lambda c: self.rule.error(self._loss_at(model, a, law, F, c), dim, no_turns(dim)))

    @staticmethod
    def _loss_at(model, a, law, F, c):
        def loss(points):
            fields, fixed, z = law.fields_at(F, points, c)
            return _loss(model, a, fixed, z, c, fields)

        return loss

    def floor(self, model):
        """Zero where a prediction is no number, so that no label is one."""
        closed = model.loss.floor(model.coordinates, model.target)
        if closed is not None:
            return closed
        if model.network.shape:
            return jnp.zeros(())

        law = model.law_of_factor(FieldFactor(jnp.zeros((0, model.teachers)), jnp.asarray(model.frame)))

        def sample(c):
            def loss(points):
                _, fixed, z = law.fields_at(law.factor, points, c)
                return model.loss(model.target.label(fixed, jnp.zeros_like(z), c), model.target.label(fixed, z, c))

            return loss

        return law.over_classes(lambda c: self.rule.average(sample(c), model.teachers + 1))

    def gradient(self, model, a, S):
        nodes = FrameNodes.of_frame(a, pad_units(model, S), self.rule)
        return np.asarray(gradient_over_nodes(model, nodes))[:, : S.shape[1]]

    def slopes(self, model, a, S):
        nodes = FrameNodes.of_frame(a, pad_units(model, S), self.rule)
        return slopes_at_nodes(model, S, nodes, self.rule.accuracy, self.remedy)

    def _nodes(self, model) -> Nodes:
        return self.rule.nodes(self._dim(model), symmetries(model))

    @staticmethod
    def _dim(model) -> int:
        return model.width + model.teachers + 1

    @staticmethod
    def _sample(model, a, law, F, c):
        def sample(points):
            fields, fixed, z = law.fields_at(F, points, c)
            return _products(model, a, fixed, z, c, fields)

        return sample


def _mean(f, model, a, law, nodes: Nodes):
    """The mean of a function of samples over the nodes, differentiated as an expectation."""
    (points, weights), k, mean, split = nodes, model.teachers, law.means, law.conditional()
    at = FieldNodes(points[:k], points[k:-1], weights)

    def of_class(c):
        sample = Partial(f, model, a, split.L @ at.x + mean.fixed[:, c][:, None], points[-1], c)
        return field_mean(sample, mean.student[:, c], split.A, split.rest, at, smooth=is_smooth(model))

    return law.over_classes(of_class)


def _products(model, a, fixed, z, c, fields) -> Moments:
    return model.products(fields, fixed, repeat_for_samples(a, fields.shape[1]), z, c)


def _loss(model, a, fixed, z, c, fields) -> Float[Array, " n"]:
    return model.sample_loss(fields, fixed, repeat_for_samples(a, fields.shape[1]), z, c)


def _factor(law) -> FieldFactor:
    """The factor with the symmetric root, which the symmetries of the nodes are made for."""
    split = law.conditional()
    return split.factor(square_root(split.rest))
