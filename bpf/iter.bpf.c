/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * iter/bpf_sk_storage_map over conns: one nn_event of kind LIVE per recorded connection of every
 * namespace, in one pass. Listeners (templates) are left out. ctx: u64 meta, map, sk, value.
 */
int nn_iter_conns(u64 *ctx)
{
	u64 meta = NN_LDX("u64", ctx, 0);
	u64 sk = NN_LDX("u64", ctx, 16);
	u64 value = NN_LDX("u64", ctx, 24);
	struct nn_event e = {};
	struct nn_conn *c;
	u64 seq;
	void *t;

	if (!sk || !value)
		return 0;
	c = (struct nn_conn *)value;
	if ((c->flags & NN_CF_LISTENER) || !c->cookie)
		return 0;
	t = nn_tcp_sock((void *)sk);
	if (!t)
		return 0;
	e.conn = *c;
	e.conn.state = NN_LDX("u8", t, NN_OFF_SKC_STATE);
	if (e.conn.state == NN_CLOSE)		/* made by connect, never sent, or already reported */
		return 0;
	e.old_state = e.conn.state;
	e.end_ns = nn_boot_ns();
	nn_read_counters(&e, t);
	seq = NN_LDX("u64", meta, 0);
	nn_seq_write((void *)seq, &e, sizeof(e));
	return 0;
}
