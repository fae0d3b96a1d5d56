"""Trained networks: a two-layer network, or any function of the fields and of network scalars."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from sgdlimits.checks import ScheduleCheck, array, by_name, number
from sgdlimits.domain import NumberInTime, Size, Width, checked
from sgdlimits.errors import BadInput, is_traced
from sgdlimits.inputs.masks import MAX_MASKED_WIDTH
from sgdlimits.model.activation import Activation, as_activation, is_probably_smooth
from sgdlimits.part import Part, is_schedule
from sgdlimits.statistics.overlaps import Scalars
from sgdlimits.statistics.trees import as_floats
from sgdlimits.text import format_count
from sgdlimits.trial import example_fields, try_function

RESERVED_NAMES = {
    "M", "Q", "q", "risk", "accuracy", "accuracy_error", "run", "t", "step", "status", "t_end", "student", "student_other",
    "teacher", "output", "task", "task_risk", "block",
}  # fmt: skip
"""Names of variables and dimensions in datasets, which network scalars cannot have."""


Dropout = Annotated[NumberInTime, ScheduleCheck(number(at_least=0, below=1))]
"""A dropout probability, or a schedule of it."""


class AnyNetwork(Part):
    """Base class of networks: functions of the fields of p units and of network scalars, such as a second layer.

    The scalars are one array `a`, shape (p,), or several by name.
    """

    width: eqx.AbstractVar[int]
    activation: eqx.AbstractVar[Any]
    """The activation of each unit; None if the network is not a sum of units."""

    @abc.abstractmethod
    def __call__(self, fields: Float[Array, "p *batch"], a: Scalars) -> Float[Array, "*shape *batch"]:
        """Evaluate the prediction of inputs with the given fields; each scalar has the axes of `batch` after its own."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of one prediction: () for a scalar, (C,) for C outputs."""

    @property
    @abc.abstractmethod
    def smooth(self) -> bool:
        """Whether the network is twice differentiable in the fields."""

    @abc.abstractmethod
    def initial(self, second: float) -> Scalars:
        """Return the initial network scalars, with all second-layer weights equal to `second`."""

    @property
    @abc.abstractmethod
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The names of the dimensions of each network scalar in datasets."""

    @property
    def plain(self) -> bool:
        """Whether the network is a sum of units weighted by the entries of `a`, as closed forms require."""
        return False

    @property
    def has_array_scalars(self) -> bool:
        """Whether the network's scalars are one array of shape (p,) rather than a dictionary."""
        return self.plain

    @property
    def head_count(self) -> int:
        """Number of second layers: one for each class of the data, or one for all classes."""
        return 1

    @property
    def mask_rate(self) -> Any:
        """Probability that a unit is dropped in a training step, or None without dropout."""
        return None

    def without_dropout(self) -> AnyNetwork:
        """Return the network with all units kept, by which risk and accuracy are defined."""
        return self

    def select_head(self, a: Scalars, c: Array | int) -> Scalars:
        """Select the scalars `a` of the second layer that predicts the labels of class `c`."""
        return a

    def apply_mask(self, a: Scalars, kept: Array | None) -> Scalars:
        """Set the second layer of dropped units in the scalars `a` to zero, and rescale that of kept units."""
        return a

    def output(self, fields: Float[Array, "p *batch"], a: Scalars, c: Array, kept: Array | None) -> Float[Array, "*batch"]:
        """Evaluate the prediction for inputs of class `c` with some units dropped.

        `kept` is 1 for kept and 0 for dropped units, or None to keep all.
        """
        return self(fields, a)


@checked
class TwoLayer(AnyNetwork):
    r"""A two-layer network: the mean :math:`f = \frac1p\sum_j a_j\, s(\lambda_j)` of p units with activation s, or their sum.

    Unit j has the field :math:`\lambda_j = u_j\cdot x` of an input x, with the trained direction :math:`u_j`.

    Parameters
    ----------
    width : p, the number of units
    activation : s, by name, as a JAX function or as an `Activation`
    mean : whether f is the mean over the units instead of their sum
    outputs : C, the number of outputs; above 1 the prediction is a vector, :math:`f_o = \frac1p\sum_j a_{jo}\, s(\lambda_j)`
    bias : whether a scalar `bias`, one for each output, is added
    heads : number of second layers, one for each class of the data; above 1 the prediction for an input of class c is
        :math:`f = \frac1p\sum_j a_{jc}\, s(\lambda_j)`, and its label trains this head alone
    dropout : probability, below 1, that a unit is dropped in a training step, independently for each unit and sample; the
        outputs of kept units are multiplied by 1/(1 - dropout). Risk and accuracy are those of the network with all units.
        None or 0 for no dropout

    With several outputs, several heads or a bias the scalars are a dictionary: `a`, of shape (p,), (p, C) or (p, heads), and
    `bias`, of shape (), (C,) or (heads,), which starts at zero.

    >>> import jax.numpy as jnp
    >>> float(TwoLayer(2, "square")(jnp.array([1.0, 2.0]), a=jnp.ones(2)))
    2.5
    >>> TwoLayer(2, "tanh", outputs=3, bias=True).initial(second=1.0)["a"].shape
    (2, 3)
    >>> TwoLayer(2, "tanh", heads=2).axes
    {'a': ('student', 'task')}
    """

    width: int = eqx.field(static=True)
    activation: Activation
    mean: bool = eqx.field(static=True)
    outputs: int = eqx.field(static=True)
    bias: bool = eqx.field(static=True)
    heads: int = eqx.field(static=True)
    dropout: Any

    omitted_in_files: ClassVar[dict[str, Any]] = {"heads": 1, "dropout": None}
    """Arguments that files omit at these defaults, so that networks without them are written as by earlier versions."""

    def __init__(
        self,
        width: Width,
        activation: str | Callable | Activation = "square",
        mean: bool = True,
        outputs: Size = 1,
        bias: bool = False,
        heads: Size = 1,
        dropout: Dropout | None = None,
    ) -> None:
        self.width, self.outputs, self.heads = width, outputs, heads
        self.activation = as_activation(activation)
        self.mean, self.bias = bool(mean), bool(bias)
        if heads > 1 and outputs > 1:
            raise BadInput(
                f"a network has several heads or several outputs, not both; got heads={heads}, outputs={outputs}. Set one to 1."
            )
        drops = is_schedule(dropout) or is_traced(dropout) or bool(dropout)
        self.dropout = as_floats(dropout) if drops else None
        if drops and width > MAX_MASKED_WIDTH:
            raise BadInput(f"dropout supports networks of at most {MAX_MASKED_WIDTH} units; got {width}. Use fewer.")

    @property
    def factor(self) -> float:
        """The prefactor of the sum over units: 1/p for the mean, 1 for the sum."""
        return 1 / self.width if self.mean else 1.0

    @property
    def plain(self):
        return self.has_array_scalars and self.dropout is None

    @property
    def head_count(self):
        return self.heads

    @property
    def mask_rate(self):
        return self.dropout

    @property
    def has_array_scalars(self):
        return self.outputs == 1 and self.heads == 1 and not self.bias

    @property
    def shape(self):
        return () if self.outputs == 1 else (self.outputs,)

    @property
    def smooth(self):
        return self.activation.smooth

    @property
    def _bias_shape(self) -> tuple[int, ...]:
        """Shape of the bias, and of each unit's part of the second layer: (heads,), (C,) or ()."""
        return (self.heads,) if self.heads > 1 else self.shape

    def initial(self, second):
        a = np.full((self.width, *self._bias_shape), float(second))
        return a if self.has_array_scalars else {"a": a, **({"bias": np.zeros(self._bias_shape)} if self.bias else {})}

    @property
    def axes(self):
        column = ("task",) if self.heads > 1 else ("output",) * len(self.shape)
        return {"a": ("student", *column), **({"bias": column} if self.bias else {})}

    def without_dropout(self):
        return self if self.dropout is None else eqx.tree_at(lambda own: own.dropout, self, None, is_leaf=lambda x: x is None)

    def select_head(self, a, c):
        """Select the scalars of the head of class `c`, an integer or an array with the trailing axes of the scalars."""
        if self.heads == 1:
            return a
        pick = lambda leaf, axis: _select_class(jnp.moveaxis(jnp.asarray(leaf), axis, 0), c)
        return {name: pick(leaf, 1 if name == "a" else 0) for name, leaf in a.items()}

    def apply_mask(self, a, kept):
        if kept is None:
            return a
        factor = (kept / (1 - self.dropout)).reshape(kept.shape[0], *(1,) * len(self.shape), *kept.shape[1:])
        return {**a, "a": a["a"] * factor} if isinstance(a, dict) else a * factor

    def output(self, fields, a, c, kept):
        if self.heads == 1 and kept is None:
            return self(fields, a)
        a = self.apply_mask(self.select_head(a, c), kept)
        values, second = self.activation(fields), a["a"] if isinstance(a, dict) else a
        f = self.factor * (second * (values[:, None] if self.shape else values)).sum(0)
        return f + a["bias"] if self.bias else f

    def __call__(self, fields, a):
        """Evaluate the prediction with all units kept; several heads have one prediction each, on the first axis."""
        values = self.activation(fields)
        if self.has_array_scalars:
            return self.factor * (a * values).sum(0)
        f = self.factor * (a["a"] * (values[:, None] if self._bias_shape else values)).sum(0)
        return f + a["bias"] if self.bias else f


def _select_class(leaf: Float[Array, "heads *axes"], c: Array) -> Float[Array, "*axes"]:
    """Select entry c of the first axis, or, for an array of classes, the entry of each sample's class."""
    entry = leaf[0]
    for i in range(1, leaf.shape[0]):
        entry = jnp.where(jnp.asarray(c) == i, leaf[i], entry)
    return entry


@checked
class Network(AnyNetwork):
    r"""A network given by any JAX function of the fields :math:`\lambda_1, \dots, \lambda_p` of one input and of scalars.

    Parameters
    ----------
    fn : fn(fields, scalars), from an array of shape (p,) and a dictionary of arrays to a scalar or a vector of outputs
    width : p, the number of trained directions
    scalars : initial values of the network scalars, numbers or arrays by name
    smooth : whether fn is twice differentiable in the fields; None tests it numerically

    In datasets a dimension of a scalar is called `student` if it comes first and has length p, and `output` if it comes last
    and has the length of a vector of outputs.

    >>> import jax.numpy as jnp
    >>> def thresholds(fields, scalars):
    ...     return scalars["scale"] * jnp.tanh(fields - scalars["threshold"]).mean()
    >>> network = Network(thresholds, width=2, scalars={"scale": 1.0, "threshold": [0.0, 0.5]})
    >>> network.shape, network.smooth, network.axes
    ((), True, {'scale': (), 'threshold': ('student',)})
    """

    fn: Callable = eqx.field(static=True)
    width: int = eqx.field(static=True)
    scalars: dict[str, Any]
    activation: None
    known_smooth: bool = eqx.field(static=True)
    known_shape: tuple[int, ...] = eqx.field(static=True)

    def __init__(
        self, fn: Callable, width: Width, scalars: Annotated[Mapping[str, Any], by_name(array())], smooth: bool | None = None
    ) -> None:
        self.fn, self.width = fn, width
        self.activation = None
        self.scalars = {name: as_floats(value) for name, value in scalars.items()}
        for name in self.scalars:
            if not isinstance(name, str) or not name.isidentifier() or name in RESERVED_NAMES:
                raise BadInput(
                    f"a scalar cannot be called {name!r}: the name is in use, or not an identifier. Give another, say 'scale'."
                )
        on = f"{format_count(width, 'field')} and its scalars"
        prediction = try_function("the network", fn, on, example_fields(width), self.scalars, shape=None)
        self.known_shape = getattr(prediction, "shape", (0, 0))  # several arrays fail the next check
        if len(self.known_shape) > 1:
            raise BadInput(f"the network must return a number or a vector; got shape {self.known_shape}. Flatten its output.")
        self.known_smooth = self._is_probably_smooth() if smooth is None else bool(smooth)

    @property
    def shape(self):
        return self.known_shape

    @property
    def smooth(self):
        return self.known_smooth

    def initial(self, second):
        return dict(self.scalars)

    @property
    def axes(self):
        return {name: self._name_axes(name, np.shape(value)) for name, value in self.scalars.items()}

    def _name_axes(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """Name the dimensions of one network scalar of the given shape."""
        axes = [f"{name}_{i}" for i in range(len(shape))]
        # In this order: an axis that fits both names is an axis of students.
        if shape and self.shape == shape[-1:]:
            axes[-1] = "output"
        if shape and shape[0] == self.width:
            axes[0] = "student"
        return tuple(axes)

    def __call__(self, fields, a):
        batch = fields.shape[1:]
        if not batch:
            return self.fn(fields, a)
        # All batch axes become one, over which the user's function is mapped.
        flat = lambda leaf: leaf.reshape(*leaf.shape[: leaf.ndim - len(batch)], -1)
        each = jax.vmap(self.fn, -1, -1)(flat(fields), jax.tree.map(flat, a))
        return each.reshape(*each.shape[:-1], *batch)

    def _is_probably_smooth(self) -> bool:
        """Test smoothness numerically along a random line through the fields, at random scalars."""
        rng = np.random.default_rng(0)
        line = rng.normal(size=self.width)
        scalars = {name: rng.normal(size=np.shape(value)) for name, value in self.scalars.items()}
        at = lambda x: jnp.sum(self.fn(x * line, scalars))
        # The answer is static, so the function is evaluated now even while the caller is being traced.
        with jax.ensure_compile_time_eval():
            return is_probably_smooth(jax.vmap(at))
