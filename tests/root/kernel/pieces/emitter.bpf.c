/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Fills the ring buffer evs: a record of 8 bytes more than nn_query.netns says, at most 64, with
 * the number of the run in front. With nn_query.proxy set the record is reserved and discarded.
 * Returns 1 when the buffer was full.
 */
#define EMIT_QUERY_OFFSET 16

struct emitted {
	u64 run;
	u64 fill[8];
};

int nn_explain(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct nn_query *q = data + EMIT_QUERY_OFFSET;
	u32 zero = 0;
	u64 *run = live.lookup(&zero);
	struct emitted e = {}, *slot;
	u64 size;

	if ((void *)(q + 1) > end || !run)
		return 2;
	e.run = *run;
	*run += 1;
	if (q->asker) {
		slot = evs.ringbuf_reserve(sizeof(*slot));
		if (!slot)
			return 1;
		*slot = e;
		evs.ringbuf_discard(slot, 0);
		return 0;
	}
	size = q->netns & 63;
	return evs.ringbuf_output(&e, sizeof(u64) + size, 0) ? 1 : 0;
}
