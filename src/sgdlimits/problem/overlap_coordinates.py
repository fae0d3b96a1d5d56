"""Coordinates of the overlaps of a projection problem: vectors, names of entries, and checks that weights exist."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.tree_util import tree_flatten_with_path

from sgdlimits.errors import BadInput, shorten
from sgdlimits.problem.coordinates import Coordinates, check_arrays
from sgdlimits.statistics.blocks import admissible_by_block, frame_by_block
from sgdlimits.statistics.overlaps import STUDENT, Overlaps, Scalars, from_vector, rows_of, to_vector
from sgdlimits.statistics.trees import as_floats, select_run, to_batch


class OverlapCoordinates(Coordinates):
    """Conversion to vectors, names and checks of statistics: overlaps, network scalars and the algorithm's memory."""

    def from_overlaps(self, overlaps):
        """Convert overlaps of a batch of runs to the statistics of the problem's algorithm, which include its memory.

        The memory is taken from the overlaps if they contain all of it. Otherwise it begins as the algorithm declares, at zero
        or as a copy of the students. Memory of other algorithms is left out.
        """
        algorithm, runs = self.problem.algorithm, overlaps.M.shape[0]
        remembered = {*algorithm.memory, *algorithm.numbers}
        if set(algorithm.names) <= set(overlaps.names) and remembered <= set(overlaps.kept):
            return overlaps.reorder(algorithm.names, remembered)
        overlaps = overlaps.of(STUDENT)  # memory that is incomplete, or of another algorithm, is ignored
        # the directions of a name are copies of the students, or zero
        is_copy = [name == STUDENT or algorithm.memory[name] == "copy" for name in algorithm.names]
        M = np.concatenate([overlaps.M * copied for copied in is_copy], axis=-2)
        Q = np.concatenate(
            [np.concatenate([overlaps.Q * (one and other) for other in is_copy], axis=-1) for one in is_copy], axis=-2
        )
        trained = algorithm.select_trained(overlaps.a)
        kept = {
            name: jax.tree.map(lambda leaf, copied=copied: leaf * copied, trained)
            for name, copied in zip(algorithm.names, is_copy, strict=True)
            if name != STUDENT
        }
        repeat_for_runs = lambda value: np.full((runs, self.problem.network.width) if isinstance(value, tuple) else runs, value)
        numbers = {name: repeat_for_runs(value) for name, value in algorithm.numbers.items()}
        return Overlaps(overlaps.a, as_floats(M), as_floats(Q), {**kept, **numbers}, algorithm.names)

    def vector(self, stats):
        """Return one run's statistics as a vector: M, the upper triangle of Q, trained scalars, the algorithm's memory."""
        return to_vector(stats, self.problem.algorithm.trained_scalars)

    def from_vector(self, vector, like):
        return from_vector(vector, like, self.problem.algorithm.trained_scalars)

    def variables(self, stats):
        _check_type(self.problem, stats)
        return stats.variables(None if self.problem.network.has_array_scalars else self.problem.network.axes)

    def names(self, stats):
        *blocks, n, k = stats.M.shape
        p = n // len(stats.names)
        rows = [f"{'' if name == STUDENT else f'{name} '}{j}" for name in stats.names for j in range(p)]
        pairs = list(zip(*np.triu_indices(n), strict=True))
        each = [f"{b}," for b in range(*blocks)] if blocks else [""]
        names = [f"M[{b}{j},{r}]" for b in each for j in rows for r in range(k)]
        names += [f"Q[{b}{rows[j]},{rows[l]}]" for b in each for j, l in pairs]
        for path, leaf in tree_flatten_with_path((self.problem.algorithm.select_trained(stats.a), stats.kept))[0]:
            name = " ".join(key.key for key in path[1:]) or "a"
            names += [f"{name}[{','.join(map(str, index))}]" if index else name for index in np.ndindex(np.shape(leaf))]
        return tuple(names)

    def in_limit(self, stats):
        limit = self.problem.limit
        remembered = {*limit.algorithm.memory, *limit.algorithm.numbers}
        if stats.names == limit.algorithm.names and set(stats.kept) == remembered:
            return stats
        return select_run(limit.coordinates.from_overlaps(to_batch(jax.tree.map(np.asarray, stats))))

    def moves(self, stats):
        """Return a mask of the statistics vector: true for entries that training changes, false for norms on the sphere."""
        *blocks, n, k = stats.M.shape
        free = np.ones(len(self.names(stats)), bool)
        if blocks:
            free[: np.size(stats.M)] = self._moving_overlaps(n)
        elif self.problem.algorithm.sphere:
            row, column = np.triu_indices(n)
            student = np.arange(n)[rows_of(stats.names, STUDENT, self.problem.network.width)]
            # in `vector`, the upper triangle of Q follows the n k entries of M
            free[n * k :][: row.size] = ~((row == column) & np.isin(row, student))
        return free

    def _moving_overlaps(self, n: int) -> np.ndarray:
        """Return a mask of the entries of M, by block: false for fixed directions that vanish in the block of coordinates.

        `n` is the number of trained directions.
        """
        if self.problem.algorithm.sphere:
            raise BadInput(
                "the overlaps that training can change are not known for weights on the sphere and inputs with blocks of "
                "variances. Use sphere=False."
            )
        gram = np.asarray(self.problem.model.gram)
        there = np.diagonal(gram, axis1=1, axis2=2) > 0
        if any(np.linalg.matrix_rank(P, hermitian=True) < own.sum() for P, own in zip(gram, there, strict=True)):
            raise BadInput(
                "the fixed directions in a block must be linearly independent. Give a gram that is nonsingular in each block."
            )
        return np.repeat(there[:, None], n, axis=1).ravel()

    def admissible(self, stats):
        return admissible_by_block(stats, self.problem.frames, self.problem.network.width if self.problem.sphere else 0)

    def fits(self, stats: Any) -> None:
        """Raise `BadInput` unless `stats` are overlaps of one run, traced or not, with the shapes of the problem."""
        problem = self.problem
        _check_type(problem, stats)
        p, k, M, Q = problem.network.width, problem.target.teachers, np.shape(stats.M), np.shape(stats.Q)
        n, blocks = p * len(stats.names), () if problem.data.blocks is None else (problem.data.blocks,)
        if ((*blocks, n, k), (*blocks, n, n)) != (M, Q):
            raise BadInput(
                f"M must have shape {(*blocks, n, k)} and Q {(*blocks, n, n)} for one run of width {p}; got {M} and {Q}. "
                "Give statistics of these shapes, and use jax.vmap for many runs."
            )
        super().fits(stats)

    def check(self, stats: Overlaps) -> None:
        self.check_form(stats)
        ranks = np.full(self.problem.data.blocks or (), stats.M.shape[-2])
        frame_by_block(stats, self.problem.frames, ranks)  # raises BadInput if no weights have these overlaps

    def check_form(self, stats: Overlaps) -> None:
        """Raise `BadInput` unless the overlaps of a batch are finite and symmetric and have the shapes of the problem."""
        problem = self.problem
        p, k = problem.network.width, problem.target.teachers
        _check_type(problem, stats)
        check_names(problem.algorithm, stats)
        n = p * len(stats.names)
        shapes = {
            name: np.shape(value) for name, value in _scalars_by_name(problem.network.initial(problem.initial.second)).items()
        }
        values = {**_scalars_by_name(stats.a), "M": stats.M, "Q": stats.Q}
        blocks = () if problem.data.blocks is None else (problem.data.blocks,)
        check_arrays(values, {**shapes, "M": (*blocks, n, k), "Q": (*blocks, n, n)}, p, k, "statistics")
        runs = {name: len(value) for name, value in values.items()}
        if len(set(runs.values())) > 1:
            numbers = ", ".join(f"{name} of {number}" for name, number in runs.items())
            raise BadInput(f"the statistics have different numbers of runs: {numbers}. Give arrays of the same number of runs.")
        Q = np.asarray(stats.Q)
        if not np.allclose(Q, np.swapaxes(Q, -1, -2), atol=1e-9):
            raise BadInput("Q must be symmetric. Give Q = U U^T for some weights U.")
        norms = np.diagonal(stats.of(STUDENT).Q, axis1=-2, axis2=-1)
        norms = norms if problem.data.blocks is None else norms.sum(-2)
        if problem.algorithm.sphere and not np.allclose(norms, 1.0, atol=1e-9):
            raise BadInput(
                f"sphere=True keeps every norm at 1, but the start has Q_jj = {norms.ravel()[np.argmax(abs(norms - 1))]:.6g}. "
                "Give Q with ones on its diagonal, or sphere=False."
            )


def check_names(algorithm: Any, stats: Overlaps) -> None:
    """Raise `BadInput` unless the overlaps are those of the directions of an algorithm: students and stored directions."""
    if stats.names != algorithm.names:
        raise BadInput(
            f"the statistics of {type(algorithm).__name__} have rows for {', '.join(algorithm.names)}; "
            f"got {', '.join(stats.names)}. Make them with problem.coordinates.from_overlaps."
        )


def _check_type(problem: Any, stats: Any) -> None:
    """Raise `BadInput` unless `stats` are overlaps with the second-layer scalars of the problem's network."""
    if not isinstance(stats, Overlaps):
        raise BadInput(f"the statistics must be Overlaps; got {shorten(stats)}. Give Overlaps(a, M, Q).")
    scalars, plain = problem.network.initial(problem.initial.second), not isinstance(stats.a, dict)
    if isinstance(scalars, dict) and (plain or set(stats.a) != set(scalars)):
        got = "one array" if plain else ", ".join(stats.a)
        raise BadInput(
            f"a must be a dictionary with the scalars {', '.join(scalars)} of the network; got {got}. Give each scalar by name."
        )
    if not plain and not isinstance(scalars, dict):
        raise BadInput(f"a must be one array for a single second layer; got {', '.join(stats.a)}. Give an array.")


def _scalars_by_name(scalars: Scalars) -> dict[str, Any]:
    """Return the second-layer scalars as a dictionary by name; a second layer that is one array has the name `a`."""
    return scalars if isinstance(scalars, dict) else {"a": scalars}
