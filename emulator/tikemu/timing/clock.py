"""The clock of one core, as the machine drives it: repetitions are replayed, all else is simulated.

What operations do on the pipes depends only on the times in the simulator's records relative to the present. These
relative times are a *state*. In the loops of a tiled kernel the same state comes back once the queues are full, and
every block begins in the same state.

The actions that follow a state are remembered as a tree. If an iteration of the loop (or the block) ended at a place in
the tree, the place has the *transition*: the time that passed, the counts, and the next state. As long as the same
actions follow again, walking along the tree replaces the simulation. If other actions follow, the skipped part is
simulated after all. All times are multiples of ``QUANTUM``; so sums are exact, and a replayed run equals a simulated
run bit for bit.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Callable

from ..soc import SocProfile
from .footprints import Footprint
from .pipe_state import Records, capture, restore
from .simulator import PipeSimulator, TimedOp

#: Loop iterations simulated before a loop is watched, at first and at most.
FIRST_BACKOFF, LONGEST_BACKOFF = 128, 8192
#: States captured before most of a loop's iterations must have been replayed.
TRIAL_STATES = 12
#: Actions remembered of one iteration, of one block, and of all together.
ITERATION_ACTIONS, BLOCK_ACTIONS, ALL_ACTIONS = 3000, 20_000, 100_000
#: Footprints above which no loop is watched: capturing a state looks at all of them.
MOST_FOOTPRINTS = 1000
#: Actions that wait at an iteration, after which they are done.
MOST_PENDING = 1000
#: After this many remembered blocks without a replay no more blocks are remembered.
TRIAL_BLOCKS = 3


def keep_most(total: dict[Any, int], counts: dict[Any, int]) -> None:
    """Raise the numbers in ``total`` to the numbers in ``counts``."""
    for key, count in counts.items():
        total[key] = max(count, total.get(key, 0))


@dataclass(eq=False)
class Transition:
    """Hold the events between a state and the end of an iteration or block.

    Attributes:
        cycles: time that passed.
        after: the state that follows; None at the end of a block.
        busy, flags: cycles of work of the scalar unit; flags inserted.
        waited: cycles by index, see :mod:`.waits`; without zeros.
        events: see :attr:`PipeSimulator.events`.
        ops: the operations executed.
        extra: see :attr:`PipeSimulator.extra`.
        replays: how often it was replayed and not yet counted.
    """

    cycles: float
    after: State | None
    busy: float
    flags: int
    waited: dict[int, float]
    events: dict[tuple[int, int], int]
    ops: list[TimedOp]
    extra: dict[TimedOp, float]
    replays: int = 0


class Place(dict):
    """Hold a place in the tree of actions. It maps the key of an action to the next place.

    Attributes:
        parent: the place before; None for a State.
        function, argument, ops: the action that led here, and the operations that it executes.
        iteration_end, block_end: the transition from the state to here, if an iteration or a block ended here.
    """

    __slots__ = ("parent", "function", "argument", "ops", "iteration_end", "block_end")

    def __init__(
        self, parent: Place | None, function: Any = None, argument: Any = None, ops: tuple[TimedOp, ...] = ()
    ) -> None:
        self.parent, self.function, self.argument, self.ops = parent, function, argument, ops
        self.iteration_end: Transition | None = None
        self.block_end: Transition | None = None


class State(Place):
    """A state of the simulator relative to its present time, root of a tree. ``records``
    restores it; None: everything is complete."""

    __slots__ = ("records",)

    def __init__(self, records: Records | None) -> None:
        super().__init__(None)
        self.records = records


class CoreClock:
    """Time on one core.

    Args:
        soc, trace_limit, warn: see :class:`PipeSimulator`.
        replay: replay repetitions; the times are the same without it.
        prompt: a program calls the methods itself, instead of ``later``: it computes no results, or what an action
            reports names the present iteration.

    Between results of instructions, an action takes twice as long as among others. So a program that computes results
    notes its actions, and they are done together. No time decides how it goes on.

    Attributes:
        later: notes an action, as a pair of a method and its argument; None if ``prompt``.
        simulator: simulates actions that are not remembered. Its counts hold after :meth:`settle`.
        footprints: the footprints that operations refer to.
        place: the place in the tree while it is followed, else None. While it is followed, the simulator's records are
            records of an earlier place, ``_simulated``, or (if None) older still. ``simulator.now`` is then the time of
            the state.
    """

    def __init__(
        self,
        soc: SocProfile,
        trace_limit: int = 0,
        warn: Callable[[str, Any], None] = lambda message, location: None,
        replay: bool = True,
        prompt: bool = True,
    ) -> None:
        self._pending: list[tuple[Callable[[Any], None], Any]] = []
        self.later = None if prompt else self._pending.append
        self.simulator = PipeSimulator(soc, trace_limit, warn)
        self.footprints = self.simulator.footprints
        self._issue, self._replay = soc.timing.issue_cycles, replay
        self.place: Place | None = None
        self._events: dict[tuple[int, int], int] = {}  # most of the counted operations, as in the simulator
        self._simulated: Place | None = None
        self._loop: int | None = None  # an iteration of this loop ends a transition; None: the block does
        self._failures: dict[int, int] = {}  # by loop, how often watching it did not pay
        self._backoff = self._iterations_left = FIRST_BACKOFF
        self._fresh_blocks = 0  # blocks remembered since one was replayed
        self._new_actions = 0  # remembered since the latest state
        self._captures = self._replays = 0  # states captured and transitions replayed since the last review
        self._before: tuple[float, float, int, list[float]] = (0.0, 0.0, 0, [])  # what a transition begins with
        self._clear()

    # -------------------------------------------------------------------------------------------- runs and blocks
    def restart(self) -> None:
        """Begin a new run: nothing has happened, nothing is counted."""
        self._pending.clear()
        self.place = None
        self._events = {}
        self.simulator.restart()

    def begin_block(self, start: float, replay: bool = False) -> None:
        """Begin a block at ``start``: everything is complete. With ``replay`` it may be like an earlier one."""
        self._do_pending()
        self.place = None
        self.simulator.reset(start)
        if replay and self._possible and self._fresh_blocks < TRIAL_BLOCKS:
            self._fresh_blocks += 1
            self._loop = None
            self._enter(self._start)

    def end_block(self) -> float:
        """Time at which everything of the block is complete; its records are lost."""
        self._do_pending()
        place, simulator = self.place, self.simulator
        if place is None:
            simulator.settle_idle()
            return simulator.finish
        if place.block_end is None:
            self._catch_up(place)
            simulator.settle_idle()
            end = simulator.finish
            place.block_end = self._transition(place, end, None)
        else:
            place.block_end.replays += 1
            end = simulator.now + place.block_end.cycles
            self._fresh_blocks = 0
        self.place = self._simulated = None
        return end

    @property
    def now(self) -> float:
        """Return the scalar unit's time."""
        self.settle()
        return self.simulator.now

    @property
    def finish(self) -> float:
        """Time at which everything issued so far is complete."""
        self.settle()
        return self.simulator.finish

    @property
    def events(self) -> dict[tuple[int, int], int]:
        """Return the most tokens that waited at one time, per (source, destination) pipe."""
        self._do_pending()
        self.count()
        total = dict(self._events)
        keep_most(total, self.simulator.events)
        return total

    def add_counts(
        self, scalar_busy: float, flags: int, waited: list[float], events: dict[tuple[int, int], int]
    ) -> None:
        """Add what another clock has counted."""
        self.simulator.scalar_busy += scalar_busy
        self.simulator.flags += flags
        for index, cycles in enumerate(waited):
            self.simulator.waited[index] += cycles
        keep_most(self._events, events)

    def settle(self) -> None:
        """Bring the simulator's records up to date and stop following."""
        self._do_pending()
        place = self.place
        if place is not None:
            self._catch_up(place)
            self.place = None
        self.count()

    def forget(self) -> None:
        """Drop remembered actions, and footprints that can no longer delay anything.

        Prepared operations must not refer to these footprints.
        """
        self.settle()
        self._clear()
        self.footprints.prune(self.simulator.now)

    def _do_pending(self) -> None:
        actions = self._pending[:]
        self._pending.clear()
        for method, argument in actions:
            method(argument)

    # -------------------------------------------------------------------------------------------- actions
    def note_iteration(self, loop: int) -> None:
        """Note that an iteration of ``loop`` begins, and do what waits if it is much."""
        self._pending.append((self.iteration, loop))
        if len(self._pending) > MOST_PENDING:
            self._do_pending()

    def step(self, ops: tuple[TimedOp, ...]) -> None:
        """Execute operations one after another, with automatic synchronisation."""
        place = self.place
        if place is None:
            self.simulator.execute(ops)
            return
        following = place.get(id(ops))
        if following is None:
            self._extend(id(ops), self.simulator.execute, ops, ops)
        else:
            self.place = following

    def scalar(self, cycles: float) -> None:
        """Count work of the scalar unit."""
        self._act(-cycles, self.simulator.scalar, cycles)

    def iteration(self, loop: int = 0) -> None:
        """Begin an iteration of ``loop``."""
        place = self.place
        if place is None:
            self._iterations_left -= 1
            if self._iterations_left < 0:
                self._watch(loop)
        elif loop == self._loop:
            self._end_iteration(place)
        if self.place is None:
            self.simulator.scalar(self._issue)
        else:
            self.scalar(self._issue)

    def scalar_read(self, footprint: Footprint) -> None:
        """Load from a tensor by the scalar unit: the pipe that wrote it drains first."""
        if self.place is None:
            self.simulator.scalar_read(footprint)
        else:
            self._act((footprint, False), self.simulator.scalar_read, footprint)

    def scalar_write(self, footprint: Footprint) -> None:
        """Store into a tensor by the scalar unit: earlier accesses of other pipes come first."""
        self._act((footprint, True), self.simulator.scalar_write, footprint)

    def await_value(self, in_pipe: bool) -> None:
        """Wait for the value that the scalar unit read last, see :meth:`PipeSimulator.await_value`."""
        self._act(("value", in_pipe), self.simulator.await_value, in_pipe)

    def enter_unsynced(self, _: None = None) -> None:
        """Begin a scope without automatic synchronisation: only accesses before it are waited for."""
        self.settle()
        self.simulator.enter_unsynced()

    def _act(self, key: Hashable, function: Callable[[Any], None], argument: Any) -> None:
        place = self.place
        if place is None:
            function(argument)
            return
        following = place.get(key)
        if following is None:
            self._extend(key, function, argument)
        else:
            self.place = following

    # -------------------------------------------------------------------------------------------- steady states
    def _capture(self) -> State:
        """Return the state of the simulator, the same object for equal ones."""
        self.simulator.settle_idle()  # a state does not hold for how long a pipe has been free
        key, records = capture(self.simulator)
        return self._states.setdefault(key, State(records))

    def _clear(self) -> None:
        self._start = State(None)
        self._states: dict[Hashable, State] = {}
        self._transitions: list[Transition] = []
        self._actions = 0

    @property
    def _possible(self) -> bool:
        return self._replay and self.simulator.repeatable

    def _watch(self, loop: int) -> None:
        """Watch ``loop`` from here on if it is its turn."""
        self._iterations_left = self._backoff
        if not self._possible or len(self.simulator.footprints) > MOST_FOOTPRINTS:
            return
        self._failures.setdefault(loop, 0)
        first = min(self._failures, key=self._failures.__getitem__)
        if self._failures[loop] > self._failures[first]:
            self._failures[first] += 1  # if it does not come meanwhile, it has had its turn
            self._iterations_left = FIRST_BACKOFF
            return
        self.count()
        self._loop = loop
        self._replays = self._captures = 0
        self._enter(self._capture())

    def _enter(self, state: State) -> None:
        """Set the simulator's records from ``state``."""
        self.place = self._simulated = state
        self._actions += self._new_actions
        self._new_actions = 0
        self._begin_transition()

    def _begin_transition(self) -> None:
        """Start to count for one transition."""
        simulator = self.simulator
        self._before = simulator.now, simulator.scalar_busy, simulator.flags, simulator.waited[:]
        keep_most(self._events, simulator.events)
        simulator.events, simulator.extra = {}, {}

    def _extend(
        self, key: Hashable, function: Callable[[Any], None], argument: Any, ops: tuple[TimedOp, ...] = ()
    ) -> None:
        """Execute ``function(argument)``, which has not followed here before, and remember it.

        Args:
            key: stands for the action. If it is the identity of ``ops``, these are kept with it.
            ops: the operations that are executed.
        """
        place = self.place
        if place is not self._simulated:
            self._catch_up(place)
        self.place = None
        function(argument)
        self._new_actions += 1
        limit = BLOCK_ACTIONS if self._loop is None else ITERATION_ACTIONS
        if self._new_actions > limit or not self._possible:
            self._stop()
            return
        following = place[key] = Place(place, function, argument, ops)
        self.place = self._simulated = following

    def _end_iteration(self, place: Place) -> None:
        """Begin another iteration of the watched loop."""
        transition = place.iteration_end
        if transition is None:
            self._catch_up(place)
            after = self._capture()
            place.iteration_end = self._transition(place, self.simulator.now, after)
            self._captures += 1
            if self._captures < TRIAL_STATES or self._worthwhile():
                self._enter(after)
            else:
                self._stop()
            return
        transition.replays += 1
        self.simulator.now += transition.cycles
        self.place, self._simulated = transition.after, None

    def _transition(self, place: Place, end: float, after: State | None) -> Transition:
        """Return the events from the state to ``place``."""
        simulator, (now, busy, flags, waited) = self.simulator, self._before
        ops: list[TimedOp] = []
        step: Place | None = place
        while step is not None:
            ops += step.ops
            step = step.parent
        transition = Transition(
            end - now,
            after,
            simulator.scalar_busy - busy,
            simulator.flags - flags,
            {i: time - earlier for i, (time, earlier) in enumerate(zip(simulator.waited, waited)) if time != earlier},
            dict(simulator.events),
            ops,
            dict(simulator.extra),
        )
        self._transitions.append(transition)
        return transition

    def _catch_up(self, place: Any) -> None:
        """Simulate the skipped actions, so that the simulator's records belong to ``place``."""
        simulated, path = self._simulated, []
        while place is not simulated and place.parent is not None:
            path.append(place)
            place = place.parent
        if place is not simulated:
            restore(self.simulator, place.records)
            self._captures += 1
            self._begin_transition()
        self._simulated = path[0] if path else place
        self.place = None
        for step in reversed(path):
            step.function(step.argument)
        self.place = self._simulated

    def _worthwhile(self) -> bool:
        """Return whether most of the iterations were replayed, and there is room for more."""
        self.count()
        if self._replays <= 4 * self._captures or self._actions > ALL_ACTIONS:
            return False
        self._replays = self._captures = 0
        self._backoff = FIRST_BACKOFF
        return True

    def _stop(self) -> None:
        """Follow nothing for a while; the simulator's records are right."""
        self.place = None
        if self._loop is not None:
            self._failures[self._loop] += 1
            self._backoff = min(2 * self._backoff, LONGEST_BACKOFF)
        self._iterations_left = self._backoff
        self._actions += self._new_actions
        self._new_actions = 0
        if self._actions > ALL_ACTIONS:
            self.count()
            self._clear()

    def count(self) -> None:
        """Enter the replays since the last time into the counters."""
        simulator = self.simulator
        for transition in self._transitions:
            replays = transition.replays
            if replays:
                self._replays += replays
                transition.replays = 0
                simulator.scalar_busy += replays * transition.busy
                simulator.flags += replays * transition.flags
                for index, cycles in transition.waited.items():
                    simulator.waited[index] += replays * cycles
                keep_most(self._events, transition.events)
                for op in transition.ops:
                    op.count += replays
                for op, extra in transition.extra.items():
                    op.extra += replays * extra
