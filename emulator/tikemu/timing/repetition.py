"""Repeated courses of events are replayed instead of simulated again.

What operations do to the clock depends only on the clock's state relative to its present time. In the loops of a tiled
kernel states come back once the queues are full, and every block begins in the same state. So the actions that follow a
state are remembered as a tree, and at each place of the tree where the loop (or the block) comes to its end, what has
happened since. As long as the same actions follow again, walking along the tree replaces the simulation; where others
follow, what was skipped is made up for. All times are multiples of ``QUANTUM``; so sums are exact, and a replayed run
equals a simulated one bit for bit.

Times in the past are compared only with others of the same pipe (is this access already known to be complete?). So a
state holds their order, not their age, and leaves out what every pipe knows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, Callable

if TYPE_CHECKING:
    from .engine import CoreClock, TimedOp

#: All times are multiples of this many cycles; sums are exact up to 2**33 cycles.
QUANTUM = 2.0**-20
#: Loop iterations simulated before a loop is watched, at first and at most; states looked at before it must have paid.
PAUSE, LONGEST_PAUSE, TRIAL = 128, 8192, 12
#: Actions remembered of one iteration and of one block; of all together; footprints above which nothing is begun.
ITERATION, BLOCK, ACTIONS, FOOTPRINTS = 3000, 20_000, 100_000, 1000
#: Code of the newest time in the past; older ones are below it. Times that still matter are above it.
_PAST = -1e6


def exact(cycles: float) -> float:
    """``cycles`` as a multiple of QUANTUM."""
    return round(cycles / QUANTUM) * QUANTUM


def keep_most(total: dict[Any, int], counts: dict[Any, int]) -> None:
    """Raise the numbers in ``total`` to those in ``counts``."""
    for key, count in counts.items():
        total[key] = max(count, total.get(key, 0))


class Course:
    """What happened between a state and the end of an iteration or a block.

    Attributes:
        hits: replays that are not counted yet.
        cycles: time that passed.
        after: the state that follows; None at the end of a block.
        busy, flags: cycles of work of the scalar unit; flags inserted.
        events: see :attr:`CoreClock.events`.
        ops: the operations executed.
    """

    __slots__ = ("hits", "cycles", "after", "busy", "flags", "events", "ops")

    def __init__(
        self,
        cycles: float,
        after: State | None,
        busy: float,
        flags: int,
        events: dict[tuple[int, int], int],
        ops: list[TimedOp],
    ) -> None:
        self.hits, self.cycles, self.after, self.busy, self.flags = 0, cycles, after, busy, flags
        self.events, self.ops = events, ops


class Node(dict):
    """A place in the tree of actions; maps the key of an action to the next place.

    Attributes:
        parent: the place before; None for a State.
        function, argument, ops: the action that led here, and the operations that it executes.
        head, finish: the course from the state to here, where an iteration or a block ended here.
    """

    __slots__ = ("parent", "function", "argument", "ops", "head", "finish")

    def __init__(
        self, parent: Node | None, function: Any = None, argument: Any = None, ops: tuple[TimedOp, ...] = ()
    ) -> None:
        self.parent, self.function, self.argument, self.ops = parent, function, argument, ops
        self.head: Course | None = None
        self.finish: Course | None = None


class State(Node):
    """A state of the clock relative to its present time, as :meth:`Repetition._look` gives it; root of a tree."""

    __slots__ = ("image",)

    def __init__(self, image: tuple | None) -> None:
        super().__init__(None)
        self.image = image


class Repetition:
    """The tree of actions of one clock.

    Args:
        clock: the clock. While the tree is followed, ``clock.node`` is the place, and the clock's records are those of
            an earlier place, ``tip``, or (``tip`` None) older still; ``now`` is the time of the state. Otherwise
            ``clock.node`` is None.
    """

    def __init__(self, clock: CoreClock) -> None:
        self.clock = clock
        self.loop: int | None = None  # the loop whose iterations end a course
        self.tip: Node | None = None
        self.events: dict[tuple[int, int], int] = {}
        self._failures: dict[int, int] = {}  # by loop, how often watching it did not pay
        self._pause = PAUSE
        self._blocks = 0  # remembered since one was replayed
        self._length = 0  # actions remembered since the latest state
        self._looks = self._hits = 0  # states looked at and courses replayed since the last review
        self._before = (0.0, 0.0, 0)
        self._clear()

    def _clear(self) -> None:
        self._start = State(None)
        self._states: dict[Hashable, State] = {}
        self._courses: list[Course] = []
        self._actions = 0

    def forget(self) -> None:
        """Drop everything that is remembered."""
        self.settle()
        self._clear()

    # -------------------------------------------------------------------------------------------- following
    def begin_block(self) -> None:
        """A block begins: everything is complete."""
        if self.clock.observed or self._blocks >= 3:
            return
        self._blocks += 1
        self.loop = None
        self._enter(self._start)

    def begin_loop(self, loop: int) -> None:
        """An iteration of ``loop`` begins; watch it if it is its turn."""
        self.clock.patience = self._pause
        if self.clock.observed or len(self.clock.footprints) > FOOTPRINTS:
            return
        self._failures.setdefault(loop, 0)
        first = min(self._failures, key=self._failures.__getitem__)
        if self._failures[loop] > self._failures[first]:
            self._failures[first] += 1  # if it does not come meanwhile, it has had its turn
            self.clock.patience = PAUSE
            return
        self.count()
        self.loop = loop
        self._hits = self._looks = 0
        self._enter(self._look())

    def _enter(self, state: State) -> None:
        """The clock's records are those of ``state``."""
        clock = self.clock
        clock.node = self.tip = state
        self._actions += self._length
        self._length = 0
        self._mark()

    def _mark(self) -> None:
        """What is counted from here on belongs to one course."""
        clock = self.clock
        self._before = clock.now, clock.scalar_busy, clock.flags
        keep_most(self.events, clock.recent_events)
        clock.recent_events = {}

    def unknown(
        self, key: Hashable, function: Callable[[Any], None], argument: Any, ops: tuple[TimedOp, ...] = ()
    ) -> None:
        """Execute ``function(argument)``, which has not followed here before, and remember it.

        Args:
            key: stands for the action. Where it is the identity of ``ops``, these are kept with it.
            ops: the operations that are executed.
        """
        clock, node = self.clock, self.clock.node
        if node is not self.tip:
            self._make_up(node)
        clock.node = None
        function(argument)
        self._length += 1
        if self._length > (BLOCK if self.loop is None else ITERATION) or clock.observed:
            self._stop()
            return
        following = node[key] = Node(node, function, argument, ops)
        clock.node = self.tip = following

    def end_iteration(self, node: Node) -> None:
        """The watched loop begins another iteration."""
        course, clock = node.head, self.clock
        if course is None:
            self._make_up(node)
            after = self._look()
            node.head = self._course(node, clock.now, after)
            self._looks += 1
            if self._looks < TRIAL or self._paid():
                self._enter(after)
            else:
                self._stop()
            return
        course.hits += 1
        clock.now += course.cycles
        clock.node, self.tip = course.after, None

    def end_block(self) -> float:
        """Time at which everything of the block is complete; its records are lost."""
        clock, node = self.clock, self.clock.node
        if node is None:
            return max(clock.now, *clock.done)
        if node.finish is None:
            self._make_up(node)
            end = max(clock.now, *clock.done)
            node.finish = self._course(node, end, None)
        else:
            node.finish.hits += 1
            end = clock.now + node.finish.cycles
            self._blocks = 0
        clock.node = self.tip = None
        return end

    def settle(self) -> None:
        """Bring the clock's records up to date and stop following."""
        node = self.clock.node
        if node is not None:
            self._make_up(node)
            self.clock.node = None
        self.count()

    def _course(self, node: Node, end: float, after: State | None) -> Course:
        clock, (now, busy, flags), place, ops = self.clock, self._before, node, []
        while place is not None:
            ops += place.ops
            place = place.parent
        course = Course(end - now, after, clock.scalar_busy - busy, clock.flags - flags, dict(clock.recent_events), ops)
        self._courses.append(course)
        return course

    def _make_up(self, node: Node) -> None:
        """Simulate what was skipped, so that the clock's records are those of ``node``."""
        tip, path = self.tip, []
        while node is not tip and node.parent is not None:
            path.append(node)
            node = node.parent
        clock = self.clock
        if node is not tip:
            self._restore(node)
            self._looks += 1
            self._mark()
        self.tip = path[0] if path else node
        clock.node = None
        for place in reversed(path):
            place.function(place.argument)
        clock.node = self.tip

    def _paid(self) -> bool:
        """Whether most of the iterations were replayed, and there is room for more."""
        self.count()
        if self._hits <= 4 * self._looks or self._actions > ACTIONS:
            return False
        self._hits = self._looks = 0
        self._pause = PAUSE
        return True

    def _stop(self) -> None:
        """Nothing is followed for a while; the clock's records are right."""
        self.clock.node = None
        if self.loop is not None:
            self._failures[self.loop] += 1
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
        self.clock.patience = self._pause
        self._actions += self._length
        self._length = 0
        if self._actions > ACTIONS:
            self.count()
            self._clear()

    def count(self) -> None:
        """Enter the replays since the last time into the counters."""
        clock = self.clock
        for course in self._courses:
            hits = course.hits
            if hits:
                self._hits += hits
                course.hits = 0
                clock.scalar_busy += hits * course.busy
                clock.flags += hits * course.flags
                keep_most(self.events, course.events)
                for op in course.ops:
                    op.count += hits

    # -------------------------------------------------------------------------------------------- states
    def _look(self) -> State:
        """The state that the clock's records show."""
        clock = self.clock
        now, pipes = clock.now, range(len(clock.free))
        edge = now - clock.flag_delay  # what was complete by then delays nothing any more
        known = clock.known
        least = [min(known[pipe][source] for pipe in pipes if pipe != source) for source in pipes]
        past: list[set[float]] = [set() for _ in pipes]

        def matters(source: int, time: float) -> bool:
            if time <= edge and time > least[source]:
                past[source].add(time)
            return time > edge or time > least[source]

        accesses = []
        for footprint in clock.footprints:
            written = matters(footprint.write_pipe, footprint.write_done)
            readers = [(pipe, done) for pipe, done in footprint.readers.items() if matters(pipe, done)]
            if written or readers:
                accesses.append(
                    (footprint, footprint.write_pipe if written else None, footprint.write_done, sorted(readers))
                )
        complete = [matters(pipe, clock.done[pipe]) for pipe in pipes]
        order = [sorted(times) for times in past]

        def code(source: int, time: float) -> float:
            return time - now if time > edge else _PAST + bisect_right(order[source], time) - len(order[source])

        def wait_code(source: int, time: float) -> float:
            return time - now if time > edge else _PAST + bisect_left(order[source], time) - len(order[source])

        waits = []
        for (source, pipe), times in clock.waits.items():
            codes = [wait_code(source, time) for time in times]
            # A wait that ended before everything that still matters is the first to go.
            gone = next((number for number, c in enumerate(codes) if c > _PAST - len(order[source])), len(codes))
            if codes[gone:]:
                waits.append((source, pipe, tuple(codes[gone:])))
        key = (
            clock.mask,
            tuple([time - now if time > now else 0.0 for time in clock.free]),
            tuple([code(pipe, clock.done[pipe]) if complete[pipe] else None for pipe in pipes]),
            tuple([code(source, row[source]) for pipe, row in enumerate(known) for source in pipes if source != pipe]),
            tuple([tuple([time - now for time in ring if time > now]) for ring in clock.starts]),
            tuple(waits),
            frozenset(
                [
                    (
                        id(footprint),
                        pipe,
                        None if pipe is None else code(pipe, done),
                        tuple([(reader, code(reader, time)) for reader, time in readers]),
                    )
                    for footprint, pipe, done, readers in accesses
                ]
            ),
        )
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = State(
                (
                    clock.mask,
                    [time - now for time in clock.free],
                    [time - now for time in clock.done],
                    [[time - now for time in row] for row in known],
                    [[time - now for time in ring] for ring in clock.starts],
                    {pair: [time - now for time in times] for pair, times in clock.waits.items()},
                    [
                        (
                            footprint,
                            footprint.write_pipe,
                            done - now,
                            [(reader, time - now) for reader, time in readers],
                        )
                        for footprint, _, done, readers in accesses
                    ],
                )
            )
        return state

    def _restore(self, state: Node) -> None:
        """Write ``state`` into the clock's records, at the present time."""
        clock, now = self.clock, self.clock.now
        if state is self._start:
            clock.clear()
            return
        mask, free, done, known, starts, waits, accesses = state.image
        clock.mask = mask
        clock.free[:] = [now + time for time in free]
        clock.done[:] = [now + time for time in done]
        for row, times in zip(clock.known, known):
            row[:] = [now + time for time in times]
        for ring, times in zip(clock.starts, starts):
            ring.extend([now + time for time in times])
        clock.waits = {pair: deque([now + time for time in times]) for pair, times in waits.items()}
        clock.footprints.reset()
        for footprint, pipe, written, readers in accesses:
            footprint.write_pipe, footprint.write_done = pipe, now + written
            footprint.readers.update({reader: now + time for reader, time in readers})
