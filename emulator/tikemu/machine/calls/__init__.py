"""Calls of instructions at run time: checked and prepared once, and then executed as often as a loop says.

To check the arguments of a call, resolve its operands, and build and cost its micro-operations takes many times longer
than to run them. So the compiled program names a :class:`.site.CallSite` per call, which *binds* the call. The site
gives the operations for the values of the run-time arguments, and keeps them. :mod:`.compiler` writes the look-up.

1. The **key** holds the parts of a call that are known only at run time (:mod:`.arguments`). Operations are kept by
   key, up to ``site.LIMIT`` of them; when there are more, all are dropped.
2. If offsets of operands are part of the key, every iteration may come with a new key. After ``site.KEPT`` keys
   (at once in a run without numerics) the call is **relocated** (:mod:`.relocation`). Operations are then prepared once
   for all addresses that are alike, and point to another address each time.
3. Calls without run-time arguments that follow one another are bound together, as a :class:`.site.CallGroup`.

With ``Options(reuse=False)`` nothing is looked up (see ``Reusable`` of the runtime): every call is bound each time.
What dropped operations have counted stays with their site.
"""
