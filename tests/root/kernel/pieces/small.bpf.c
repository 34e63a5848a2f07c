/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* One program and two maps: all the compiler has to deal with, and quick to compile. */
BPF_ARRAY(counter, u64, 1);
BPF_HASH(seen, u32, u64, 8);

int nn_small(struct __sk_buff *skb)
{
	u32 zero = 0, length = skb->len;
	u64 now = NN_FLAG, *value = counter.lookup(&zero);

	if (value)
		*value += 1;
	seen.update(&length, &now);
	return NN_FLAG;
}
