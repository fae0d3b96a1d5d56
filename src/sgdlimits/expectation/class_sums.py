r"""Classes with readouts or heads of their own, and dropout: averages over classes and masks of the averages of each.

An input of class c is one of a plain model, with the readout of the class, its head, and the second layer of dropped units at
zero. Every average is then one over classes and masks,

.. math:: E[f] = \sum_c \pi_c \sum_m \rho_m\, E[f \mid c, m],

and for each class and mask the expectation that suits the plain model applies, in closed form where it has one. The drift is
linear in the weights of the classes; covariances follow by the law of total covariance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from sgdlimits.checks import each_of, instance
from sgdlimits.domain import checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.expectation.base import Expectation
from sgdlimits.expectation.gaussian import Rule
from sgdlimits.expectation.nodes import NodeSums
from sgdlimits.expectation.slopes import Slopes
from sgdlimits.inputs.mixture import Mixture
from sgdlimits.model.masks import all_masks, mask_weights
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

MAX_AVERAGED_UNITS = 10
"""Units whose masks are all averaged over; each further one would double the time."""
ONE_FOR_ALL = (CommitteeReadout, QuadraticReadout, FunctionReadout, TimedReadout)
"""Readouts that do not depend on the class."""


class OfClass(Readout):
    """The readout of one class."""

    base: Readout
    i: int = eqx.field(static=True)

    def __call__(self, fixed, c=0):
        return self.base(fixed, self.i)


class ClassPart(NamedTuple):
    """A plain model of one class, or of all: its class, the turn of its fixed fields, and the model without masks."""

    i: int | None
    turn: Float[Array, "k k"] | None
    model: Model

    def law(self, law: FieldLaw) -> FieldLaw:
        """Return the law of the fields of this part, the fixed fields turned."""
        if self.i is None:
            return law
        T, i = self.turn, slice(self.i, self.i + 1)
        rows = lambda fixed: fixed if T is None else T @ fixed
        columns = lambda cross: cross if T is None else cross @ T.T
        mean, C, F = law.mean, law.covariance, law.factor
        return FieldLaw(
            np.ones(1),  # type: ignore[arg-type]
            None if mean is None else FieldFactor(mean.student[:, i], rows(mean.fixed[:, i])),
            law.unit,
            None if C is None else Covariance(C.students, columns(C.cross), columns(rows(C.fixed))),
            None if F is None else FieldFactor(F.student, rows(F.fixed)),
            law.shape,
        )

    def untwisted(self, moments: Moments) -> Moments:
        """Return products with the fixed fields themselves, from those with turned ones."""
        if self.turn is None:
            return moments
        back = inverse(self.turn)
        return moments._replace(gradient_fixed=jnp.einsum("jr...,sr->js...", moments.gradient_fixed, back))


def inverse(T: Any) -> Any:
    r"""Return the inverse of a turn, :math:`T^\top(TT^\top)^{-1}`, by eliminations that every kernel translates."""
    if not is_traced(T):
        return np.linalg.inv(np.asarray(T))
    n = T.shape[0]
    rows = jnp.concatenate([(T[:, None] * T[None]).sum(2), jnp.eye(n)], axis=1)
    for i in range(n):  # of a positive definite matrix: no pivot is small
        pivot = rows[i] / rows[i, i]
        rows = jnp.where((jnp.arange(n) == i)[:, None], pivot, rows - rows[:, i][:, None] * pivot)
    return (T.T[:, :, None] * rows[None, :, n:]).sum(1)


def is_split(model: Model) -> bool:
    """Return whether a model is an average over plain ones: by its readouts, its heads or its dropout."""
    return has_tasks(model) or isinstance(model.target.readout, ClassReadouts) or model.network.mask_rate is not None


def has_tasks(model: Model) -> bool:
    """Return whether classes are tasks: several, with readouts or heads of their own."""
    return model.data.classes > 1 and (isinstance(model.target.readout, ClassReadouts) or model.network.tasks > 1)


def parts(model: Model) -> tuple[ClassPart, ...]:
    """Return the plain models whose average a model is, one for each class that has a readout or a head of its own.

    Schedules have their first value: which parts there are, and of which kind, does not depend on the time.
    """
    model = at_start(model)
    network, readout = model.network.tested(), model.target.readout
    if not (isinstance(readout, ClassReadouts) or network.tasks > 1):
        return (ClassPart(None, None, model.tested),)
    if network.tasks > 1:
        assert isinstance(network, TwoLayer)
        network = TwoLayer(network.width, network.activation, network.mean, bias=network.bias)
    return tuple(_part(model, network, i) for i in range(model.data.classes))


def _part(model: Model, network: Any, i: int) -> ClassPart:
    readout, target, data = model.target.readout, model.target, model.data
    assert isinstance(data, Mixture)
    own: Readout = OfClass(readout, i)
    turn: Any = None
    if isinstance(readout, ClassReadouts):
        own, turn = readout.readouts[i], None if readout.turns is None else readout.turns[i]
    elif isinstance(readout, ClassLabels):
        own = ClassLabels(readout.labels[i : i + 1])
    elif isinstance(readout, ONE_FOR_ALL):
        own = readout
    means = None if data.means is None else data.means[i : i + 1]
    gram = target.gram
    if turn is not None:
        gram = turn @ gram @ turn.T
        means = None if means is None else means @ inverse(turn)
    inputs = Mixture(np.ones(1), means, 0.0 if data.spread is None else data.spread)
    own_target = eqx.tree_at(lambda target: (target.readout, target.gram), target, (own, gram))
    return ClassPart(i, turn, Model(inputs, own_target, network, model.loss))


@checked
class ClassSums(Expectation):
    """Classes with readouts or heads of their own, and dropout: sums over classes and masks.

    Parameters
    ----------
    of : the expectations of the plain models of the classes, or one for all
    """

    needs: ClassVar[str] = "classes with readouts or heads of their own, or dropout, and expectations that suit each class"
    of: tuple[Expectation, ...]

    def __init__(
        self,
        of: Annotated[
            Sequence[Any],
            each_of(instance("sgdlimits.expectation.base", "Expectation", "an Expectation", "Give NodeSums(Sobol()).")),
        ],
    ) -> None:
        self.of = tuple(of)

    def supports(self, model):
        if not is_split(model):
            return False
        found = parts(model)
        return len(self.of) in (1, len(found)) and all(own.supports(part.model) for part, own in self._pairs(found))

    def moments(self, model, a, law):
        return self._mean(model, a, law, lambda own, part, a, law: own.moments(part.model, a, law), _embedded)

    def error(self, model, a, law):
        size = lambda moments: jax.tree.map(jnp.abs, moments)
        back = lambda part, select, moments: size(_embedded(part, select, moments))
        return self._mean(model, a, law, lambda own, part, a, law: own.error(part.model, a, law), back)

    def estimate(self, model, a, law):
        return self.moments(model, a, law), self.error(model, a, law)

    def risk(self, model, a, law):
        return self._mean(model, a, law, lambda own, part, a, law: own.risk(part.model, a, law))

    def risk_error(self, model, a, law):
        return self._mean(model, a, law, lambda own, part, a, law: own.risk_error(part.model, a, law))

    def risk_of_factor(self, model, a, law):
        return self._mean(model, a, law, lambda own, part, a, law: own.risk_of_factor(part.model, a, law))

    def risks(self, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, " classes"]:
        """Return the risk of each class, masks included."""
        f = lambda own, part, a, law: own.risk(part.model, a, law)
        return jnp.stack([self._of_part(model, a, law, pair, f, None) for pair in self._pairs(parts(model))])

    def covariance(self, model, a, law, increment):
        def of_part(own, part, scalars, law, select):
            change = lambda products: increment(_embedded(part, select, products))
            mean = change(jax.tree.map(lambda leaf: leaf[..., None], own.moments(part.model, scalars, law)))[:, 0]
            return mean, own.covariance(part.model, scalars, law, change) + mean[:, None] * mean

        mean, raw = self._mean(model, a, law, of_part, selects=True)
        return raw - mean[:, None] * mean

    def floor(self, model):
        shares = model.coordinates.weights
        found = [own.floor(part.model) for part, own in self._pairs(parts(model))]
        return found[0] if len(found) == 1 else sum(shares[i] * each for i, each in enumerate(found))

    def slopes(self, model, a, S):
        found, k = Slopes(0.0, 0.0, 0.0), model.teachers  # type: ignore[arg-type]
        keeps, rates = _masks(model)
        weights = np.asarray(model.coordinates.weights)
        for part, own in self._pairs(parts(model)):
            R = np.eye(S.shape[1])
            if part.turn is not None:
                R[:k, :k] = np.linalg.solve(cholesky_factor(part.model.target.gram), part.turn @ np.asarray(model.frame))
            for kept, rate in zip([None] if keeps is None else keeps, np.asarray(rates), strict=True):
                scalars = _select(model, part, kept)(a)
                each = own.slopes(part.model, jax.tree.map(np.asarray, scalars), S @ R.T)
                share = rate * (1.0 if part.i is None else weights[part.i])
                span = np.einsum("jslt,sx,ty->jxly", each.span, R, R)
                found = Slopes(*(x + share * y for x, y in zip(found, (each.gradient @ R, span, each.outside), strict=True)))
        return found

    def without_smoothing(self):
        return ClassSums(tuple(own.without_smoothing() for own in self.of)) if any(own.without_smoothing() is not own for own in self.of) else self

    def finer(self):
        finer = [own.finer() for own in self.of]
        return ClassSums(tuple(new or own for new, own in zip(finer, self.of, strict=True))) if any(finer) else None

    def tolerance(self, model):
        return max(own.tolerance(part.model) for part, own in self._pairs(parts(model)))

    def accuracy(self, model):
        each = [own.accuracy(part.model) for part, own in self._pairs(parts(model))]
        return min((found for found in each if found is not None), default=None)

    @property
    def remedy(self):
        return next((own.remedy for own in self.of if own.remedy), "")

    def runs_at_once(self, model):
        masks = 1 if model.network.mask_rate is None else 1 << model.width
        each = [own.runs_at_once(part.model) for part, own in self._pairs(parts(model))]
        return min((max(1, runs // masks) for runs in each if runs is not None), default=None)

    def _pairs(self, found: Sequence[ClassPart]) -> list[tuple[ClassPart, Expectation]]:
        return list(zip(found, self.of * len(found) if len(self.of) == 1 else self.of, strict=True))

    def _mean(self, model: Model, a: Scalars, law: FieldLaw, f: Callable, back: Any = None, selects: bool = False) -> PyTree:
        """Average a function of the plain models over classes and masks, with its value taken back to the whole model."""
        found = [self._of_part(model, a, law, pair, f, back, selects) for pair in self._pairs(parts(model))]
        if len(found) == 1:
            return found[0]
        return jax.tree.map(lambda *leaves: sum(w * leaf for w, leaf in zip(law.weights, leaves, strict=True)), *found)

    @staticmethod
    def _of_part(model, a, law, pair, f, back, selects=False) -> PyTree:
        (part, own), (keeps, weights) = pair, _masks(model)
        of_class = part.law(law)

        def one(kept):
            select = _select(model, part, kept)
            value = f(own, part, select(a), of_class, select_of(select)) if selects else f(own, part, select(a), of_class)
            return value if back is None else back(part, select_of(select), value)

        select_of = lambda select: lambda second: _transposed(select, a, second)
        if keeps is None:
            return one(None)
        return jax.tree.map(lambda leaf: jnp.tensordot(weights, leaf, 1), jax.vmap(one)(jnp.asarray(keeps)))


def _masks(model: Model) -> tuple[Float[np.ndarray, "masks p"] | None, Any]:
    """Return all masks of a model with dropout, or None, and their probabilities."""
    rate, width = model.network.mask_rate, model.width
    if rate is None:
        return None, np.ones(1)
    if width > MAX_AVERAGED_UNITS:
        raise BadInput(
            f"averages over the masks of dropout are written for at most {MAX_AVERAGED_UNITS} units; got {width}. "
            "Use Chain(d) or SGD(d), which draw them, or fewer units."
        )
    return all_masks(width), mask_weights(rate, width)


def _select(model: Model, part: ClassPart, kept: Any) -> Callable[[Scalars], Scalars]:
    """Return what makes the scalars of a part, by its head and a mask, from all scalars."""
    network = model.network

    def select(a):
        own = network.masked(a if part.i is None else network.head(a, part.i), kept)
        return own["a"] if isinstance(own, dict) and part.model.network.one_array else own

    return select


def _transposed(select: Callable, a: Scalars, second: Scalars) -> Scalars:
    """Return derivatives with respect to all scalars from those with respect to the scalars of a part, samples last or none."""
    back = jax.vjp(select, jax.tree.map(lambda leaf: jnp.asarray(leaf, float), a))[1]
    first = jax.tree.leaves(second)
    extra = first[0].ndim - jax.tree.leaves(jax.eval_shape(select, a))[0].ndim if first else 0
    apply = lambda tree: back(tree)[0]
    for _ in range(extra):
        apply = jax.vmap(apply, -1, -1)
    return apply(second)


def _embedded(part: ClassPart, select: Callable, moments: Moments) -> Moments:
    """Return the products of a part as products of the whole model."""
    return part.untwisted(moments)._replace(gradient_second=select(moments.gradient_second))


def rule_of(expectation: Expectation | None) -> Rule | None:
    """Return the rule of an expectation that is a sum over nodes, or of one made of such; None for others."""
    if isinstance(expectation, ClassSums):
        return rule_of(expectation.of[0])
    return expectation.rule if isinstance(expectation, NodeSums) else None


def risk_by_class(expectation: Expectation, model: Model, a: Scalars, law: FieldLaw) -> Float[Array, " classes"]:
    """Return the risk of each class of a model with tasks."""
    assert isinstance(expectation, ClassSums)
    return expectation.risks(model, a, law)
