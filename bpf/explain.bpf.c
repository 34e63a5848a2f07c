/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Runs the deciding code on a question instead of a socket: BPF_PROG_TEST_RUN with nn_query behind
 * 16 bytes of packet head. Attached nowhere. The verdict is the return value.
 */
#define NN_QUERY_OFFSET 16

int nn_explain(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	void *end = (void *)(long)skb->data_end;
	struct nn_query *q = data + NN_QUERY_OFFSET;
	struct nn_ip local, remote;
	struct nn_pod *p;
	u64 netns;
	u16 lport, rport;
	u32 udp, v;

	if ((void *)(q + 1) > end)
		return 0;
	netns = q->netns;
	local = q->local;
	remote = q->remote;
	lport = q->local_port;
	rport = q->remote_port;
	p = pods.lookup(&netns);
	udp = q->protocol == NN_IPPROTO_UDP;
	if (q->dir == NN_DIR_OUT) {
		if (q->protocol != NN_IPPROTO_TCP && !udp)
			return NN_V(NN_R_NOT_TCP, NN_ACT_PASS, 0);
		return nn_decide_out(p, netns, q->asker == NN_ASK_PROXY, &remote, rport, udp);
	}
	if (q->protocol != NN_IPPROTO_TCP)
		return NN_V(NN_R_NOT_TCP, NN_ACT_PASS, 0);
	if (q->asker) {
		/* known by its 4-tuple (byp) once the SYN is on its way; the rows before are asked first */
		v = nn_decide_in_early(p, netns, &local, lport, &remote, rport);
		return v ? v : NN_V(q->asker == NN_ASK_PROXY ? NN_R_FROM_PROXY : NN_R_HOST_PROBE,
				    NN_ACT_PASS, 0);
	}
	return nn_decide_in(p, netns, &local, lport, &remote, rport);
}
