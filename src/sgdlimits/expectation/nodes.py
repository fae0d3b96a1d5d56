"""Any activation, readout and loss: averages over nodes."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.node_slopes import FrameNodes, gradient_over_nodes, slopes_at_nodes
from sgdlimits.expectation.slopes import padded
from sgdlimits.gaussian import Rule
from sgdlimits.statistics.frame import Loading, loading

RUNS_AT_ONCE = 64


class NodeSums(Expectation):
    """Any activation, readout and loss: averages of the one-sample quantities over the nodes of a `Rule`."""

    rule: Rule

    def tolerance(self, model):
        return self.rule.tolerance

    def accuracy(self, model):
        return self.rule.accuracy

    @property
    def remedy(self):
        return self.rule.remedy

    def runs_at_once(self, model):
        return RUNS_AT_ONCE

    def moments(self, model, stats):
        F = loading(stats, model.frame)
        return model.over_classes(lambda c: self.rule.average(self._sample(model, stats, F, c), self._dim(model)))

    def error(self, model, stats):
        F = loading(stats, model.frame)
        return model.over_classes(lambda c: self.rule.error(self._sample(model, stats, F, c), self._dim(model)))

    def covariance(self, model, stats, increment):
        F, nodes = loading(stats, model.frame), self.rule.nodes(self._dim(model))

        def moments(c):
            change = increment(self._sample(model, stats, F, c)(nodes.points))
            weighted = change * nodes.weights
            return weighted.sum(1), weighted @ change.T

        mean, raw = model.over_classes(moments)
        return raw - mean[:, None] * mean

    def risk_of_factor(self, model, a, F):
        def sample(c):
            def loss(points):
                fields, fixed, z = model.place(F, points, c)
                return model.sample_loss(fields, fixed, a[:, None], z, c)

            return loss

        return model.over_classes(lambda c: self.rule.average(sample(c), self._dim(model)))

    def floor(self, model):
        closed = model.loss.floor(model.data, model.target)
        if closed is not None:
            return closed

        def sample(c):
            def loss(points):
                frame = jnp.asarray(model.frame)
                _, fixed, z = model.place(Loading(frame, frame), points, c)
                return model.loss(model.target.label(fixed, jnp.zeros_like(z), c), model.target.label(fixed, z, c))

            return loss

        return model.over_classes(lambda c: self.rule.average(sample(c), model.teachers + 1))

    def gradient(self, model, a, S):
        nodes = FrameNodes.of_frame(a, padded(model, S), self.rule)
        return np.asarray(gradient_over_nodes(model, nodes))[:, : S.shape[1]]

    def slopes(self, model, a, S):
        nodes = FrameNodes.of_frame(a, padded(model, S), self.rule)
        return slopes_at_nodes(model, S, nodes, self.rule.accuracy, self.remedy)

    @staticmethod
    def _dim(model) -> int:
        return model.width + model.teachers + 1

    @staticmethod
    def _sample(model, stats, F, c):
        def sample(points):
            fields, fixed, z = model.place(F, points, c)
            return model.products(fields, fixed, jnp.broadcast_to(stats.a[:, None], fields.shape), z, c)

        return sample


ByRule = NodeSums
