"""NUTS as a finite state machine by hand: chains under `jax.vmap` go on without a wait for the deepest tree of each draw.

Loops are taken apart into phases, and a chain has a number that says in which it stands, as in "Efficiently Vectorized MCMC on Modern Accelerators" (ICML 2025). The
sampler and its random numbers are those of `blackjax.nuts` with a unit mass matrix: multinomial proposals, doubled trajectories, turns found by checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

START, BEGIN, LEAP, CHECK, END, DONE = range(6)
"""Phases: a draw starts, a subtree begins, one leapfrog, one comparison with a checkpoint, a subtree ends, all draws are made."""

MOST_DOUBLINGS = 10
MOST_ENERGY = 1000.0
"""The error of the energy from which on a trajectory diverges."""


class Place(NamedTuple):
    """A point of a trajectory.

    Args:
      x: Position.
      p: Momentum.
      g: Gradient of the log density.
    """

    x: Any
    p: Any
    g: Any


class Proposal(NamedTuple):
    """The point that is drawn of some part of a trajectory.

    Args:
      x: Position.
      log_density: Of the position.
      g: Its gradient.
      weight: Logarithm of the sum of all weights of that part.
    """

    x: Any
    log_density: Any
    g: Any
    weight: Any


class Chain(NamedTuple):
    """A chain between two transitions.

    Args:
      phase: What comes next.
      draw: Draws made.
      depth: Doublings of the tree of this draw.
      leaf: Leapfrogs of the subtree.
      energy: At the draw's start.
      key: Of the draw's doublings.
      of_leaves: Key of the subtree's leaves.
      of_end: Key of the choice between tree and subtree.
      direction: 1 or -1.
      left: The tree's first point.
      right: Its last point.
      total: Sum of the tree's momenta.
      n_leaps: Leapfrogs of the tree.
      proposal: Of the tree.
      here: The subtree's last point.
      sub_total: Sum of the subtree's momenta.
      sub_proposal: Of the subtree.
      momenta: Momenta at checkpoints, `[MOST_DOUBLINGS, size]`.
      totals: Sums of momenta there.
      check: The checkpoint to compare with.
      first_check: The last one to compare with, in this order.
      turns: Whether the subtree turns back.
      diverges: Whether it diverges.
      counts: Leapfrogs of each draw.
    """

    phase: Any
    draw: Any
    depth: Any
    leaf: Any
    energy: Any
    key: Any
    of_leaves: Any
    of_end: Any
    direction: Any
    left: Place
    right: Place
    total: Any
    n_leaps: Any
    proposal: Proposal
    here: Place
    sub_total: Any
    sub_proposal: Proposal
    momenta: Any
    totals: Any
    check: Any
    first_check: Any
    turns: Any
    diverges: Any
    counts: Any


class ChainMachine:
    """Transitions of one chain.

    Args:
      log_density: Of a position.
      step: The step of a leapfrog.
      draws: Draws of a chain.
    """

    def __init__(
        self,
        log_density: Callable[[Any], Any],
        step: float,
        draws: int,
    ):
        self._value_and_gradient = jax.value_and_grad(log_density)
        self._step = step
        self._draws = draws

    def first(self, key: Any, x: Any) -> Chain:
        """A chain before its first draw.

        Args:
          key: Of the chain.
          x: Its start.
        """
        log_density, g = self._value_and_gradient(x)
        zero = jnp.zeros_like(x)
        none = jnp.zeros((), jnp.int32)
        no = jnp.zeros((), bool)
        place = Place(x, zero, g)
        weight = jnp.zeros_like(log_density)
        proposal = Proposal(x, log_density, g, weight)
        rows = jnp.zeros((MOST_DOUBLINGS, x.size))
        return Chain(
            phase=none + START,
            draw=none,
            depth=none,
            leaf=none,
            energy=weight,
            key=key,
            of_leaves=key,
            of_end=key,
            direction=weight,
            left=place,
            right=place,
            total=zero,
            n_leaps=none,
            proposal=proposal,
            here=place,
            sub_total=zero,
            sub_proposal=proposal,
            momenta=rows,
            totals=rows,
            check=none,
            first_check=none,
            turns=no,
            diverges=no,
            counts=jnp.zeros(self._draws, jnp.int32),
        )

    def start(self, keys: Any, chain: Chain) -> Chain:
        """A draw starts with a new momentum, and a tree of one point.

        Args:
          keys: A key for each draw.
          chain: The chain.
        """
        of_momentum, key = jax.random.split(keys[chain.draw])
        x, log_density, g, _ = chain.proposal
        p = jax.random.normal(of_momentum, x.shape)
        place = Place(x, p, g)
        return chain._replace(
            phase=jnp.full_like(chain.phase, BEGIN),
            depth=jnp.zeros_like(chain.depth),
            energy=0.5 * jnp.sum(p * p) - log_density,
            key=key,
            left=place,
            right=place,
            total=p,
            n_leaps=jnp.zeros_like(chain.n_leaps),
            proposal=chain.proposal._replace(weight=jnp.zeros_like(log_density)),
        )

    def begin(self, chain: Chain) -> Chain:
        """A subtree begins at one end of the tree.

        Args:
          chain: The chain.
        """
        key = jax.random.fold_in(chain.key, chain.depth)
        of_direction, of_leaves, of_end = jax.random.split(key, 3)
        goes_right = jax.random.bernoulli(of_direction)
        return chain._replace(
            phase=jnp.full_like(chain.phase, LEAP),
            leaf=jnp.zeros_like(chain.leaf),
            of_leaves=of_leaves,
            of_end=of_end,
            direction=jnp.where(goes_right, 1.0, -1.0),
            here=chosen(goes_right, chain.right, chain.left),
        )

    def leap(self, chain: Chain) -> Chain:
        """One leapfrog, and the choice between its point and the subtree's proposal.

        Args:
          chain: The chain.
        """
        step = self._step * chain.direction
        x, p, g = chain.here
        p = p + 0.5 * step * g
        x = x + step * p
        log_density, g = self._value_and_gradient(x)
        p = p + 0.5 * step * g
        change = chain.energy + log_density - 0.5 * jnp.sum(p * p)
        change = jnp.where(jnp.isnan(change), -jnp.inf, change)
        # the first point is taken, any other with its share of all weights
        old = chain.sub_proposal
        is_first = chain.leaf == 0
        key = jax.random.fold_in(chain.of_leaves, chain.leaf)
        share = jax.nn.sigmoid(change - old.weight)
        is_taken = is_first | jax.random.bernoulli(key, share)
        weight = jnp.logaddexp(old.weight, change)
        weight = jnp.where(is_first, change, weight)
        new = Proposal(x, log_density, g, weight)
        total = p + jnp.where(is_first, 0.0, chain.sub_total)
        # every other leaf is a checkpoint; which ones a leaf is compared with is in its bits
        leaf = chain.leaf
        place = lax.population_count(leaf >> 1)
        n_checks = lax.population_count((~leaf & (leaf + 1)) - 1)
        is_here = jnp.arange(MOST_DOUBLINGS) == place
        is_written = (is_here & (leaf % 2 == 0))[:, None]
        return chain._replace(
            phase=jnp.full_like(chain.phase, CHECK),
            leaf=leaf + 1,
            here=Place(x, p, g),
            sub_total=total,
            sub_proposal=chosen(is_taken, new, old._replace(weight=weight)),
            momenta=jnp.where(is_written, p, chain.momenta),
            totals=jnp.where(is_written, total, chain.totals),
            check=place,
            first_check=place - n_checks + 1,
            turns=jnp.zeros_like(chain.turns),
            diverges=-change > MOST_ENERGY,
        )

    def compare(self, chain: Chain) -> Chain:
        """The comparison with one checkpoint, or with none if there are no more; then the next leaf, or the subtree's end.

        Args:
          chain: The chain.
        """
        is_left = chain.check >= chain.first_check
        p = chain.momenta[chain.check]
        before = chain.totals[chain.check]
        between = chain.sub_total - before + p
        turns = is_left & turns_back(p, chain.here.p, between)
        check = chain.check - 1
        goes_on = ~turns & (check >= chain.first_check)
        checked = chain._replace(check=check, turns=turns)
        return checked._replace(
            phase=jnp.where(goes_on, CHECK, self._behind_checks(checked)),
        )

    def compare_all(self, chain: Chain) -> Chain:
        """The comparisons with all checkpoints at once.

        Args:
          chain: The chain.
        """
        numbers = jnp.arange(MOST_DOUBLINGS)
        is_asked = (numbers >= chain.first_check) & (numbers <= chain.check)
        between = chain.sub_total - chain.totals + chain.momenta
        turns = turns_back(chain.momenta, chain.here.p, between)
        checked = chain._replace(turns=jnp.any(is_asked & turns))
        return checked._replace(phase=self._behind_checks(checked))

    def _behind_checks(self, chain: Chain) -> Any:
        """The phase behind the comparisons of a leaf."""
        is_full = chain.leaf >= 1 << chain.depth
        is_over = is_full | chain.turns | chain.diverges
        return jnp.where(is_over, END, LEAP)

    def end(self, chain: Chain) -> Chain:
        """A subtree joins the tree, and the draw may be made.

        Args:
          chain: The chain.
        """
        old = chain.proposal
        new = chain.sub_proposal
        fails = chain.turns | chain.diverges
        share = jnp.minimum(jnp.exp(new.weight - old.weight), 1)
        is_taken = ~fails & jax.random.bernoulli(chain.of_end, share)
        weight = jnp.logaddexp(old.weight, new.weight)
        weight = jnp.where(fails, old.weight, weight)
        goes_right = chain.direction > 0
        left = chosen(goes_right, chain.left, chain.here)
        right = chosen(goes_right, chain.here, chain.right)
        total = chain.total + chain.sub_total
        n_leaps = chain.n_leaps + chain.leaf
        depth = chain.depth + 1
        is_made = fails | turns_back(left.p, right.p, total) | (depth >= MOST_DOUBLINGS)
        draw = chain.draw + is_made
        is_here = (jnp.arange(self._draws) == chain.draw) & is_made
        behind = jnp.where(draw < self._draws, START, DONE)
        return chain._replace(
            phase=jnp.where(is_made, behind, BEGIN),
            draw=draw,
            depth=depth,
            left=left,
            right=right,
            total=total,
            n_leaps=n_leaps,
            proposal=chosen(
                is_taken,
                new._replace(weight=weight),
                old._replace(weight=weight),
            ),
            counts=jnp.where(is_here, n_leaps, chain.counts),
        )

    def transition(self, keys: Any, chain: Chain) -> Chain:
        """The usual form: the chain's own phase, one of them. Under `jax.vmap` all phases are computed for all chains.

        Args:
          keys: A key for each draw.
          chain: The chain.
        """
        phases = [
            partial(self.start, keys),
            self.begin,
            self.leap,
            self.compare,
            self.end,
            lambda chain: chain,
        ]
        return lax.switch(chain.phase, phases, chain)

    def bundle(self, keys: Any, chain: Chain) -> Chain:
        """The amortized form: whatever phases lie before a leapfrog, the leapfrog, and what lies behind, so that each chain makes one in each step.

        Args:
          keys: A key for each draw.
          chain: The chain.
        """
        at = chain.phase
        chain = chosen(at == START, self.start(keys, chain), chain)
        chain = chosen(chain.phase == BEGIN, self.begin(chain), chain)
        leapt = self.compare_all(self.leap(chain))
        chain = chosen(chain.phase == LEAP, leapt, chain)
        return chosen(chain.phase == END, self.end(chain), chain)


def turns_back(
    left: Any,
    right: Any,
    total: Any,
) -> Any:
    """Tells whether a trajectory turns back.

    Args:
      left: Momentum at one end, `[..., size]`.
      right: Momentum at the other.
      total: Sum of all momenta.
    """
    middle = total - (left + right) / 2
    at_left = jnp.sum(left * middle, -1)
    at_right = jnp.sum(right * middle, -1)
    return (at_left <= 0) | (at_right <= 0)


def chosen(
    is_new: Any,
    new: Any,
    old: Any,
) -> Any:
    """One of two trees of arrays; what is the same in both is not touched.

    Args:
      is_new: Which.
      new: If so.
      old: If not.
    """
    pick = lambda new, old: old if new is old else jnp.where(is_new, new, old)
    return jax.tree.map(pick, new, old)


def machine_of_chains(
    log_density: Callable[[Any], Any],
    step: float,
    draws: int,
    bundles: bool,
) -> Callable[[Any, Any], Any]:
    """A function of keys and starts of all chains that gives leapfrogs, `[n, draws]`.

    Args:
      log_density: Of a position.
      step: The step of a leapfrog.
      draws: Draws of each chain.
      bundles: Whether a step is a bundle of phases with one leapfrog, or one phase.
    """
    machine = ChainMachine(log_density, step, draws)
    move = machine.bundle if bundles else machine.transition

    def compute(keys: Any, starts: Any) -> Any:
        of_draws = jax.vmap(lambda key: jax.random.split(key, draws))(keys)
        chains = jax.vmap(machine.first)(keys, starts)
        chains = lax.while_loop(
            lambda chains: jnp.any(chains.phase != DONE),
            lambda chains: jax.vmap(move)(of_draws, chains),
            chains,
        )
        return chains.counts

    return jax.jit(compute)
