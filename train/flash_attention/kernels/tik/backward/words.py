"""The words of a row of the backward operator's work table, int32."""

FIELDS = 40  # per work item
EDGE = 8  # query tiles at either end of a key tile's range that may be partly visible

(HEAD, KV_HEAD, MASK_PLANE, BIAS_PLANE, SLOPE, SLOT, TILE, FIRST, COUNT, STEPS, MIDDLE, CROSS, BEFORE, BATCH) = range(
    14
)
# Query tiles FINAL .. FINAL_END - 1 are visited by no later item of the head, see BackwardSplit.owned.
FINAL, FINAL_END = 14, 15
LEFT, RIGHT, DISTANCE = 16, 24, 32

# With packed sequences there are no numbers of visibility tiles; where the sequence is stands there.
SEQUENCE = 16  # first word of its packed.Sequences
