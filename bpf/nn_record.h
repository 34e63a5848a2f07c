/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Counters of a connection, totals of a pod, and how both leave the kernel.
 *
 * Byte counts are payload and exact. write_seq counts what the app wrote, plus the SYN of an active
 * open and the FIN once one was sent; bytes_received counts the peer's FIN once it arrived, which
 * the kernel remembers in SOCK_DONE.
 */
#define NN_SOCK_DONE 1		/* bit of sock.sk_flags, enum sock_flags */

static __always_inline int nn_fin_sent(u32 state)
{
	return state == NN_FIN_WAIT1 || state == NN_FIN_WAIT2 || state == NN_CLOSING ||
	       state == NN_LAST_ACK || state == NN_TIME_WAIT;
}

/* t: struct tcp_sock by BTF. e->conn is set; e->old_state is the state the counters belong to. */
static __always_inline void nn_read_counters(struct nn_event *e, void *t)
{
	u32 write_seq = NN_LDX("u32", t, NN_OFF_WRITE_SEQ);
	u32 snd_una = NN_LDX("u32", t, NN_OFF_SND_UNA);
	u64 acked = NN_LDX("u64", t, NN_OFF_BYTES_ACKED);
	u64 received = NN_LDX("u64", t, NN_OFF_BYTES_RECEIVED);
	u64 sk_flags = NN_LDX("u64", t, NN_OFF_SK_FLAGS);
	u32 waiting = write_seq - snd_una;
	u32 syn = e->conn.dir == NN_DIR_OUT;
	u32 fin = nn_fin_sent(e->old_state);
	u64 sent = acked + waiting;

	e->bytes_sent = sent > syn + fin ? sent - syn - fin : 0;
	if (fin && waiting)		/* the FIN is the last byte that is not acknowledged */
		waiting -= 1;
	e->bytes_acked = e->bytes_sent > waiting ? e->bytes_sent - waiting : 0;
	if ((sk_flags >> NN_SOCK_DONE) & 1)
		received = received ? received - 1 : 0;
	e->bytes_received = received;
	e->srtt_us = NN_LDX("u32", t, NN_OFF_SRTT_US) >> 3;
	e->rtt_min_us = NN_LDX("u32", t, NN_OFF_RTT_MIN_V);
	e->retransmits = NN_LDX("u32", t, NN_OFF_TOTAL_RETRANS);
	e->lost = NN_LDX("u32", t, NN_OFF_LOST_OUT);
	e->segs_out = NN_LDX("u32", t, NN_OFF_SEGS_OUT);
	e->segs_in = NN_LDX("u32", t, NN_OFF_SEGS_IN);
	e->cwnd = NN_LDX("u32", t, NN_OFF_SND_CWND);
	e->err = (u16)NN_LDX("u32", t, NN_OFF_SK_ERR);
}

/* Never wakes a reader: readers poll, and the buffer holds 50 ms of 400,000 events a second. */
static __always_inline void nn_emit(struct nn_event *e, u32 kind)
{
	u64 *until = watch.lookup(&kind);

	if (!until || *until < e->end_ns)
		return;
	e->kind = kind;
	if (evs.ringbuf_output(e, sizeof(*e), BPF_RB_NO_WAKEUP))
		nn_count(NN_STAT_EVENTS_LOST);
}

/* The proxy's own sockets are not counted: each connection has one end that is the pod's. */
static __always_inline struct nn_agg *nn_totals(struct nn_conn *c, u32 pod_id)
{
	struct nn_agg_key k = {
		.pod_id = pod_id, .dir = c->dir, .reason = c->reason, .via = c->via,
	};
	struct nn_agg *a;

	if (c->flags & NN_CF_PROXY)
		return 0;
	a = agg.lookup(&k);
	if (!a) {
		struct nn_agg zero = {};

		agg.insert(&k, &zero);
		a = agg.lookup(&k);
		if (!a)
			nn_count(NN_STAT_AGG_FULL);
	}
	return a;
}
