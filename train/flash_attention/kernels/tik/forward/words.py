"""The words of a row of the forward operator's work table, int32."""

FIELDS = 48  # per work item
EDGE = 4  # key tiles at either end of a row block's range that may be partly visible

HEAD, KV_HEAD, MASK_PLANE, BIAS_PLANE, SLOPE, BEGIN, END, BATCH = range(8)
ROW_BLOCK = 8  # words of row block 0 start here
ROW_BLOCK_FIELDS = 20
START, ROWS, FIRST, LAST = range(4)
# Visibility tile numbers of the first and, counted backwards, of the last EDGE tiles; 0 = all visible.
LEFT, RIGHT = 4, 8
SAMPLE_STRIDED, SAMPLE_START, SAMPLE_STRIDE, SAMPLE_TILE = 12, 13, 14, 15
CROSS, AFTER = 16, 17  # first tile with keys after a query, first tile with all keys after all queries
DISTANCE = 18  # distance tile numbers of tiles CROSS and CROSS + 1

# With packed sequences the first row block has no numbers of visibility tiles; where its sequence is stands there.
SEQUENCE = 12  # first word of its packed.Sequences
