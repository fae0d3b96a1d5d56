r"""Expectations of models with readouts or heads by class, or with dropout: sums over classes and masks.

Given the class c of an input and the mask m of units, the model is a plain one: it has the readout and the head of the class,
and dropped units have a second layer of zero. Every expectation of a function f is then a sum over classes, of probabilities
:math:`\pi_c`, and masks, of probabilities :math:`\rho_m`,

.. math:: E[f] = \sum_c \pi_c \sum_m \rho_m\, E[f \mid c, m],

whose terms are expectations of plain models, in closed form for those that have one. The drift is linear in the class
probabilities; covariances follow from the law of total covariance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.checks import check_each, instance
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.slopes import RiskDerivatives
from sgdlimits.inputs import Blocks, Mixture
from sgdlimits.inputs.masks import enumerate_masks, mask_probabilities
from sgdlimits.model.network import TwoLayer
from sgdlimits.model.sample import Model
from sgdlimits.model.target import (
    ClassLabels,
    CommitteeReadout,
    FunctionReadout,
    QuadraticReadout,
    Readout,
    TimedReadout,
)
from sgdlimits.model.tasks import ClassReadouts
from sgdlimits.part import at_start
from sgdlimits.statistics.frame import FieldFactor, cholesky_factor
from sgdlimits.statistics.law import Covariance, FieldLaw
from sgdlimits.statistics.overlaps import Scalars
from sgdlimits.statistics.products import Moments

MAX_AVERAGED_WIDTH = 10
"""Maximum number of units with dropout for averages over all masks; each further unit would double the time."""
CLASS_INDEPENDENT_READOUTS = (CommitteeReadout, QuadraticReadout, FunctionReadout, TimedReadout)
"""Types of readouts that do not depend on the class."""


class OneClassReadout(Readout):
    """Readout of one class i, taken from a readout that depends on the class."""

    base: Readout
    i: int = eqx.field(static=True)

    def __call__(self, fixed, c=0):
        return self.base(fixed, self.i)


class ClassModel(NamedTuple):
    """Model of class i without dropout, or of all classes if i is None, with fixed fields transformed by the matrix `turn`."""

    i: int | None
    turn: Float[Array, "k k"] | None
    model: Model

    def law(self, law: FieldLaw) -> FieldLaw:
        """Return the Gaussian law of this class's student fields and transformed fixed fields, from that of all classes."""
        if self.i is None:
            return law
        T, i = self.turn, slice(self.i, self.i + 1)
        covariance = law.covariance_of_class(self.i)
        rows = lambda fixed: fixed if T is None else T @ fixed
        columns = lambda cross: cross if T is None else cross @ T.T
        mean, C, F = law.mean, covariance, law.factor
        return FieldLaw(
            np.ones(1),  # type: ignore[arg-type]
            None if mean is None else FieldFactor(mean.student[:, i], rows(mean.fixed[:, i])),
            law.unit,
            None if C is None else Covariance(C.students, columns(C.cross), columns(rows(C.fixed))),
            None if F is None else FieldFactor(F.student, rows(F.fixed)),
            law.shape,
        )

    def undo_turn(self, moments: Moments) -> Moments:
        """Convert moments of fixed fields transformed by `turn` to moments of the fixed fields themselves."""
        if self.turn is None:
            return moments
        back = invert_turn(self.turn)
        return moments._replace(gradient_fixed=jnp.einsum("jr...,sr->js...", moments.gradient_fixed, back))


def invert_turn(T: Any) -> Any:
    r"""Compute the inverse of a matrix T as :math:`T^\top(TT^\top)^{-1}`, by eliminations that every kernel supports."""
    if not is_traced(T):
        return np.linalg.inv(np.asarray(T))
    n = T.shape[0]
    rows = jnp.concatenate([(T[:, None] * T[None]).sum(2), jnp.eye(n)], axis=1)
    for i in range(n):  # of a positive definite matrix: no pivot is small
        pivot = rows[i] / rows[i, i]
        rows = jnp.where((jnp.arange(n) == i)[:, None], pivot, rows - rows[:, i][:, None] * pivot)
    return (T.T[:, :, None] * rows[None, :, n:]).sum(1)


def is_split(model: Model) -> bool:
    """Return whether the expectations of a model are sums over classes or dropout masks."""
    by_class = has_tasks(model) or isinstance(model.target.readout, ClassReadouts)
    return by_class or isinstance(model.data, Blocks) or model.network.mask_rate is not None


def has_tasks(model: Model) -> bool:
    """Return whether a model has several classes, with a readout, a head or a variance for each."""
    own = isinstance(model.target.readout, ClassReadouts) or model.network.head_count > 1 or model.data.variance_by_class
    return model.classes > 1 and own


def class_models(model: Model) -> tuple[ClassModel, ...]:
    """Split a model into models without dropout: one for each class if readouts or heads depend on the class, else one.

    Schedules are replaced by their initial values: the number and the kinds of the resulting models do not depend on time.
    """
    model = at_start(model)
    network, readout = model.network.without_dropout(), model.target.readout
    if not (isinstance(readout, ClassReadouts) or network.head_count > 1 or model.data.has_classes_apart):
        plain = model.test_model
        return (ClassModel(None, None, _isotropic(plain) if isinstance(model.data, Blocks) else plain),)
    if network.head_count > 1:
        assert isinstance(network, TwoLayer)
        network = TwoLayer(network.width, network.activation, network.mean, bias=network.bias)
    return tuple(_class_model(model, network, i) for i in range(model.classes))


def _class_model(model: Model, network: Any, i: int) -> ClassModel:
    """Build the model of class i without dropout, with one head, and with fixed directions transformed by its matrix T."""
    readout, target, data = model.target.readout, model.target, model.data
    assert isinstance(data, (Mixture, Blocks))
    own: Readout = OneClassReadout(readout, i)
    turn: Any = None
    if isinstance(readout, ClassReadouts):
        own, turn = readout.readouts[i], None if readout.turns is None else readout.turns[i]
    elif isinstance(readout, ClassLabels):
        own = ClassLabels(readout.labels[i : i + 1])
    elif isinstance(readout, CLASS_INDEPENDENT_READOUTS):
        own = readout
    if isinstance(data, Blocks):
        data, gram = data.isotropic(model.gram, i)
    else:
        data, gram = data.select_class(i), target.gram
    if turn is not None:
        data, gram = data.select_class(0, invert_turn(turn)), turn @ gram @ turn.T
    own_target = eqx.tree_at(lambda target: (target.readout, target.gram), target, (own, gram))
    return ClassModel(i, turn, Model(data, own_target, network, model.loss))


def _isotropic(model: Model) -> Model:
    """Return a model with the same law of the fixed fields, but with inputs of equal variance in all directions."""
    assert isinstance(model.data, Blocks)
    data, gram = model.data.isotropic(model.gram, None)
    target = eqx.tree_at(lambda target: target.gram, model.target, gram)
    return Model(data, target, model.network, model.loss)


@checked
class ClassSums(Expectation):
    """Expectations of models with readouts or heads by class, or with dropout, as sums over classes and masks.

    Parameters
    ----------
    expectations : method to compute the expectations of each class, or one for all classes
    """

    supported_models: ClassVar[str] = (
        "classes with readouts or heads of their own, or dropout, and expectations that support each class"
    )
    expectations: tuple[Expectation, ...]

    def __init__(
        self,
        expectations: Annotated[
            Sequence[Any],
            check_each(instance("sgdlimits.expectation.base", "Expectation", "an Expectation", "Give NodeSums(Sobol()).")),
        ],
    ) -> None:
        self.expectations = tuple(expectations)

    def supports(self, model):
        if not is_split(model):
            return False
        models = class_models(model)
        return len(self.expectations) in (1, len(models)) and all(
            own.supports(part.model) for part, own in self.pair_with_expectations(models)
        )

    def moments(self, model, a, law):
        return self._average(model, a, law, lambda own, part, a, law: own.moments(part.model, a, law), _embed_moments)

    def error(self, model, a, law):
        size = lambda moments: jax.tree.map(jnp.abs, moments)
        back = lambda part, select, moments: size(_embed_moments(part, select, moments))
        return self._average(model, a, law, lambda own, part, a, law: own.error(part.model, a, law), back)

    def estimate(self, model, a, law):
        return self.moments(model, a, law), self.error(model, a, law)

    def risk(self, model, a, law):
        return self._average(model, a, law, lambda own, part, a, law: own.risk(part.model, a, law))

    def risk_error(self, model, a, law):
        return self._average(model, a, law, lambda own, part, a, law: own.risk_error(part.model, a, law))

    def risk_of_factor(self, model, a, law):
        return self._average(model, a, law, lambda own, part, a, law: own.risk_of_factor(part.model, a, law))

    def moments_by_class(self, model: Model, a: Scalars, law: FieldLaw) -> list[tuple[ClassModel, Moments, Any]]:
        """Compute the moments on each class, and the mean E[G] of the gradient G in the student fields, averaged over masks.

        The mean gradient is None if all fields have mean zero.
        """
        moments = lambda own, part, a, law: own.moments(part.model, a, law)
        mean = lambda own, part, a, law: None if law.mean is None else _mean_gradient(own, part.model, a, law)
        return [
            (
                pair[0],
                self._average_over_masks(model, a, law, pair, moments, _embed_moments),
                self._average_over_masks(model, a, law, pair, mean, None),
            )
            for pair in self.pair_with_expectations(class_models(model))
        ]

    def risks(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, " classes"]:
        """Compute the risk on each class, averaged over masks."""
        f = lambda own, part, a, law: own.risk(part.model, a, law)
        return jnp.stack(
            [
                self._average_over_masks(model, a, law, pair, f, None)
                for pair in self.pair_with_expectations(class_models(model))
            ]
        )

    def covariance(self, model, a, law, increment):
        def covariance_of_part(own, part, scalars, law, select):
            change = lambda products: increment(_embed_moments(part, select, products))
            mean = change(jax.tree.map(lambda leaf: leaf[..., None], own.moments(part.model, scalars, law)))[:, 0]
            return mean, own.covariance(part.model, scalars, law, change) + mean[:, None] * mean

        mean, raw = self._average(model, a, law, covariance_of_part, selects=True)
        return raw - mean[:, None] * mean

    def floor(self, model):
        shares = model.data.class_probabilities
        values = [own.floor(part.model) for part, own in self.pair_with_expectations(class_models(model))]
        return values[0] if len(values) == 1 else sum(shares[i] * each for i, each in enumerate(values))

    def slopes(self, model, a, S):
        if isinstance(model.data, Blocks):
            raise BadInput(
                "derivatives of the risk are not available for inputs with variances by block or class. Use problem.drift."
            )
        total, k = RiskDerivatives(0.0, 0.0, 0.0), model.teachers  # type: ignore[arg-type]
        keeps, rates = _masks_and_probabilities(model)
        weights = np.asarray(model.coordinates.weights)
        for part, own in self.pair_with_expectations(class_models(model)):
            R = np.eye(S.shape[1])
            if part.turn is not None:
                R[:k, :k] = np.linalg.solve(cholesky_factor(part.model.target.gram), part.turn @ np.asarray(model.frame))
            for kept, rate in zip([None] if keeps is None else keeps, np.asarray(rates), strict=True):
                scalars = _scalar_selection(model, part, kept)(a)
                each = own.slopes(part.model, jax.tree.map(np.asarray, scalars), S @ R.T)
                share = rate * (1.0 if part.i is None else weights[part.i])
                span = np.einsum("jslt,sx,ty->jxly", each.span_block, R, R)
                derivatives = each.gradient @ R, span, each.outside_block
                total = RiskDerivatives(*(x + share * y for x, y in zip(total, derivatives, strict=True)))
        return total

    def without_smoothing(self):
        return (
            ClassSums(tuple(own.without_smoothing() for own in self.expectations))
            if any(own.without_smoothing() is not own for own in self.expectations)
            else self
        )

    def with_more_nodes(self):
        with_more_nodes = [own.with_more_nodes() for own in self.expectations]
        return (
            ClassSums(tuple(new or own for new, own in zip(with_more_nodes, self.expectations, strict=True)))
            if any(with_more_nodes)
            else None
        )

    def tolerance(self, model):
        return max(own.tolerance(part.model) for part, own in self.pair_with_expectations(class_models(model)))

    def accuracy(self, model):
        each = [own.accuracy(part.model) for part, own in self.pair_with_expectations(class_models(model))]
        return min((value for value in each if value is not None), default=None)

    @property
    def remedy(self):
        return next((own.remedy for own in self.expectations if own.remedy), "")

    def runs_at_once(self, model):
        masks = 1 if model.network.mask_rate is None else 1 << model.width
        each = [own.runs_at_once(part.model) for part, own in self.pair_with_expectations(class_models(model))]
        return min((max(1, runs // masks) for runs in each if runs is not None), default=None)

    def pair_with_expectations(self, models: Sequence[ClassModel]) -> list[tuple[ClassModel, Expectation]]:
        """Return each model of a class with the method that computes its expectations."""
        return list(
            zip(models, self.expectations * len(models) if len(self.expectations) == 1 else self.expectations, strict=True)
        )

    def _average(self, model: Model, a: Scalars, law: FieldLaw, f: Callable, back: Any = None, selects: bool = False) -> PyTree:
        """Average a function f of the model of one class and mask over classes and masks.

        Parameters
        ----------
        f : function (expectation, model of a class, scalars, law); if `selects` is true, it has a fifth argument, a function
            that converts derivatives in the scalars of that class and mask to derivatives in all scalars
        back : function (model of a class, the same conversion, value of f) that returns the value for the whole model
        """
        values = [
            self._average_over_masks(model, a, law, pair, f, back, selects)
            for pair in self.pair_with_expectations(class_models(model))
        ]
        if len(values) == 1:
            return values[0]
        return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(law.weights, leaves, strict=True)), *values)

    @staticmethod
    def _average_over_masks(model, a, law, pair, f, back, selects=False) -> PyTree:
        """Average a function of the scalars over dropout masks, for one class's model and its expectation."""
        (part, own), (keeps, weights) = pair, _masks_and_probabilities(model)
        of_class = part.law(law)

        def value_given_mask(kept):
            select = _scalar_selection(model, part, kept)
            value = f(own, part, select(a), of_class, select_of(select)) if selects else f(own, part, select(a), of_class)
            return value if back is None else back(part, select_of(select), value)

        select_of = lambda select: lambda second: _pull_back(select, a, second)
        if keeps is None:
            return value_given_mask(None)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), jax.vmap(value_given_mask)(jnp.asarray(keeps)))


def _mean_gradient(own: Expectation, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, " p"]:
    """Compute the mean gradient E[G] of inputs of one class: the derivative of their mean loss in the mean student fields."""
    risk = lambda mean: own.risk(model, a, eqx.tree_at(lambda law: law.mean.student, law, mean))
    return jax.grad(risk)(jnp.asarray(law.means.student))[:, 0]


def _masks_and_probabilities(model: Model) -> tuple[Float[np.ndarray, "masks p"] | None, Any]:
    """Return all dropout masks and the probability of each; without dropout, None and [1]."""
    rate, width = model.network.mask_rate, model.width
    if rate is None:
        return None, np.ones(1)
    if width > MAX_AVERAGED_WIDTH:
        raise BadInput(
            f"dropout masks can be averaged over for at most {MAX_AVERAGED_WIDTH} units; got {width}. "
            "Use Chain(d) or SGD(d), which draw masks at random, or use fewer units."
        )
    return enumerate_masks(width), mask_probabilities(rate, width)


def _scalar_selection(model: Model, part: ClassModel, kept: Any) -> Callable[[Scalars], Scalars]:
    """Return the function that selects the scalars of one class (`part`) and dropout mask (`kept`) from all scalars."""
    network = model.network

    def select(a):
        own = network.apply_mask(a if part.i is None else network.select_head(a, part.i), kept)
        return own["a"] if isinstance(own, dict) and part.model.network.has_array_scalars else own

    return select


def _pull_back(select: Callable, a: Scalars, second: Scalars) -> Scalars:
    """Convert derivatives in the selected scalars to derivatives in all scalars `a`; `second` may have trailing sample axes."""
    back = jax.vjp(select, jax.tree.map(lambda leaf: jnp.asarray(leaf, float), a))[1]
    first = jax.tree.leaves(second)
    extra = first[0].ndim - jax.tree.leaves(jax.eval_shape(select, a))[0].ndim if first else 0
    apply = lambda tree: back(tree)[0]
    for _ in range(extra):
        apply = jax.vmap(apply, -1, -1)
    return apply(second)


def _embed_moments(part: ClassModel, select: Callable, moments: Moments) -> Moments:
    """Convert the moments of one class to moments of the whole model; `select` maps derivatives to those in all scalars."""
    return part.undo_turn(moments)._replace(gradient_second=select(moments.gradient_second))


def quadrature_rule_of(expectation: Expectation | None) -> Rule | None:
    """Return the quadrature rule of an expectation that sums over nodes, also within `ClassSums`; None for others."""
    if isinstance(expectation, ClassSums):
        return quadrature_rule_of(expectation.expectations[0])
    return expectation.rule if isinstance(expectation, NodeSums) else None


def risk_by_class(expectation: Expectation, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, " classes"]:
    """Compute the risk on each class of a model with several classes, for which `has_tasks` is true."""
    assert isinstance(expectation, ClassSums)
    return expectation.risks(model, a, law)
