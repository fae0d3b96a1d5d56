"""Expectations as sums over quadrature nodes, for any activation, readout and loss."""

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
from sgdlimits.expectation.gaussian.base import square_root, trivial_group
from sgdlimits.expectation.slopes import FrameNodes, gradient_over_nodes, is_smooth, pad_units, slopes_at_nodes
from sgdlimits.expectation.symmetries import model_symmetries
from sgdlimits.statistics.frame import FieldFactor
from sgdlimits.statistics.products import Moments
from sgdlimits.statistics.trees import repeat_for_samples

# Bounds the memory of runs that are averaged together: each entry of a product takes 4 MB at this number of nodes.
MAX_NODES_AT_ONCE = 2**19
MAX_RUNS_AT_ONCE = 64


@checked
class NodeSums(Expectation):
    """Expectations as sums over the nodes of a quadrature `Rule`, for any activation, readout and loss.

    The nodes of drift and covariance have the symmetries of the model (see `symmetries`). The risk, a scalar, is averaged over
    all points of the rule, without symmetrisation, and depends on the overlaps only, not on their factor. Moments and risk are
    differentiated as expectations, not as sums (see `field_means`).

    Parameters
    ----------
    rule : the quadrature rule, such as `Sobol(12)`
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

    def with_more_nodes(self):
        rule = self.rule.with_more_nodes()
        return None if rule is None else NodeSums(rule)

    def runs_at_once(self, model):
        return max(1, min(MAX_RUNS_AT_ONCE, MAX_NODES_AT_ONCE // self._nodes(model).weights.size))

    def moments(self, model, a, law):
        return _mean_over_nodes(_products, model, a, law, self._nodes(model))

    def error(self, model, a, law):
        F, dim, group = _symmetric_factor(law), self._variable_count(model), model_symmetries(model)
        return law.average_over_classes(lambda c: self.rule.error(self._products_function(model, a, law, F, c), dim, group))

    def covariance(self, model, a, law, increment):
        F, nodes = _symmetric_factor(law), self._nodes(model)

        def increment_moments(c):
            change = increment(self._products_function(model, a, law, F, c)(nodes.points))
            weighted = change * nodes.weights
            return weighted.sum(1), weighted @ change.T

        # Raw moments are averaged over classes first: the mean to subtract is that of all classes together.
        mean, raw = law.average_over_classes(increment_moments)
        return raw - mean[:, None] * mean

    def risk(self, model, a, law):
        return _mean_over_nodes(
            _loss, model, a, law, self.rule.nodes(self._variable_count(model), trivial_group(self._variable_count(model)))
        )

    def risk_of_factor(self, model, a, law):
        """Compute the population risk from a factor of the fields' covariance, without squaring the factor.

        An SVD of the factor gives the symmetric root of the covariance.
        """
        k, F = model.teachers, law.factor
        # T = U s V^T has T T^T = (U s U^T)^2: the square of small entries is never formed.
        vectors, values, _ = jnp.linalg.svd(F.student[:, k:], full_matrices=False)
        student = jnp.hstack([F.student[:, :k], (vectors * values) @ vectors.T])
        symmetric = FieldFactor(student, F.fixed[:, : student.shape[1]])
        dim = self._variable_count(model)
        return law.average_over_classes(
            lambda c: self.rule.average(self._loss_function(model, a, law, symmetric, c), dim, trivial_group(dim))
        )

    def risk_error(self, model, a, law):
        """Estimate the absolute quadrature error of `risk`."""
        F, dim = _symmetric_factor(law), self._variable_count(model)
        return law.average_over_classes(
            lambda c: self.rule.error(self._loss_function(model, a, law, F, c), dim, trivial_group(dim))
        )

    @staticmethod
    def _loss_function(model, a, law, F, c):
        """Return the loss in class `c` as a function of standard normal points, which the factor F maps to the fields."""

        def loss(points):
            fields, fixed, z = law.fields_at(F, points, c)
            return _loss(model, a, fixed, z, c, fields)

        return loss

    def floor(self, model):
        """Compute the mean loss of predicting each label without its noise; zero for networks with several outputs."""
        closed = model.loss.floor(model.coordinates, model.target)
        if closed is not None:
            return closed
        if model.network.shape:
            return jnp.zeros(())  # a label is a scalar, and cannot be compared with a vector of outputs

        law = model.law_of_factor(FieldFactor(jnp.zeros((0, model.teachers)), jnp.asarray(model.frame)))

        def loss_in_class(c):
            def loss(points):
                _, fixed, z = law.fields_at(law.factor, points, c)
                return model.loss(model.target.label(fixed, jnp.zeros_like(z), c), model.target.label(fixed, z, c))

            return loss

        return law.average_over_classes(lambda c: self.rule.average(loss_in_class(c), model.teachers + 1))

    def gradient(self, model, a, S):
        # Nodes fixed in the frame, not moving with the weights: the gradient and the Hessian are then consistent sums.
        nodes = FrameNodes.of_frame(a, pad_units(model, S), self.rule)
        return np.asarray(gradient_over_nodes(model, nodes))[:, : S.shape[1]]

    def slopes(self, model, a, S):
        nodes = FrameNodes.of_frame(a, pad_units(model, S), self.rule)
        return slopes_at_nodes(model, S, nodes, self.rule.accuracy, self.remedy)

    def _nodes(self, model) -> Nodes:
        """Return the nodes and weights of the rule over fields and label noise, with the symmetries of the model."""
        return self.rule.nodes(self._variable_count(model), model_symmetries(model))

    @staticmethod
    def _variable_count(model) -> int:
        """Return the number of variables of the quadrature: student fields, fixed fields and label noise."""
        return model.width + model.teachers + 1

    @staticmethod
    def _products_function(model, a, law, F, c):
        """Return the products of gradients and fields in class `c` as a function of normal points, which F maps to fields."""

        def products(points):
            fields, fixed, z = law.fields_at(F, points, c)
            return _products(model, a, fixed, z, c, fields)

        return products


def _mean_over_nodes(f, model, a, law, nodes: Nodes):
    """Average a function of the fields of a sample over nodes and classes, with the derivative of the expectation."""
    points, weights = nodes
    k, mean, split = model.teachers, law.means, law.condition_on_fixed()
    at = FieldNodes(points[:k], points[k:-1], weights)

    def mean_in_class(c):
        # A Partial is a pytree: derivatives in the second layer and in the fixed fields pass through its arguments.
        sample = Partial(f, model, a, split.L @ at.x + mean.fixed[:, c][:, None], points[-1], c)
        return field_mean(sample, mean.student[:, c], split.A, split.residual_covariance, at, smooth=is_smooth(model))

    return law.average_over_classes(mean_in_class)


def _products(model, a, fixed, z, c, fields) -> Moments:
    """Compute the products of gradients and fields of each sample; `fields` is the last argument, for use in a `Partial`."""
    return model.products(fields, fixed, repeat_for_samples(a, fields.shape[1]), z, c)


def _loss(model, a, fixed, z, c, fields) -> Float[Array, " n"]:
    """Compute the loss of each sample; `fields` is the last argument, for use in a `Partial`."""
    return model.sample_loss(fields, fixed, repeat_for_samples(a, fields.shape[1]), z, c)


def _symmetric_factor(law) -> FieldFactor:
    """Factor the fields' covariance by its symmetric root, for which nodes can have the same symmetries as the model."""
    split = law.condition_on_fixed()
    return split.factor(square_root(split.residual_covariance))
