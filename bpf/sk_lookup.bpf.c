/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * sk_lookup, one link per captured pod's namespace: inbound capture. Softirq context; runs for a
 * SYN that no connection owns. SK_PASS leaves it to the app, or to the assigned proxy listener;
 * SK_DROP makes the kernel answer with a reset.
 *
 * ingress_ifindex 0 is a look-up by another program, not a packet. The pod's own traffic shows the
 * device that owns the address, not lo, so it is told by its addresses (row I2).
 */
int nn_sk_lookup(struct bpf_sk_lookup *ctx)
{
	struct nn_ip local = {}, remote = {};
	struct nn_lsn_key k = {};
	struct nn_pod *p;
	u32 v, lport, rport;
	u64 netns;
	void *sk;
	long error;

	if (ctx->protocol != NN_IPPROTO_TCP || ctx->ingress_ifindex == 0)
		return SK_PASS;
	/* IPv6 first: the verifier then finds that IPv4, with its known words, brings nothing new. */
	if (__builtin_expect(NN_LD32(struct bpf_sk_lookup, ctx, family) != AF_INET, 1)) {
		local.w[0] = NN_LD32(struct bpf_sk_lookup, ctx, local_ip6[0]);
		local.w[1] = NN_LD32(struct bpf_sk_lookup, ctx, local_ip6[1]);
		local.w[2] = NN_LD32(struct bpf_sk_lookup, ctx, local_ip6[2]);
		local.w[3] = NN_LD32(struct bpf_sk_lookup, ctx, local_ip6[3]);
		remote.w[0] = NN_LD32(struct bpf_sk_lookup, ctx, remote_ip6[0]);
		remote.w[1] = NN_LD32(struct bpf_sk_lookup, ctx, remote_ip6[1]);
		remote.w[2] = NN_LD32(struct bpf_sk_lookup, ctx, remote_ip6[2]);
		remote.w[3] = NN_LD32(struct bpf_sk_lookup, ctx, remote_ip6[3]);
	} else {
		local.w[2] = remote.w[2] = NN_MAPPED;
		local.w[3] = NN_LD32(struct bpf_sk_lookup, ctx, local_ip4);
		remote.w[3] = NN_LD32(struct bpf_sk_lookup, ctx, remote_ip4);
	}
	if (nn_same_ip(&local, &remote)) {
		/* row I2 without a look-up: every outbound connection that is captured comes by here */
		nn_count(NN_STAT_IN + NN_R_SELF);
		return SK_PASS;
	}
	asm volatile("%0 = %1 ll" : "=r"(netns) : "i"(NN_SELF_COOKIE));
	p = pods.lookup(&netns);
	lport = ctx->local_port;
	rport = nn_swap16((u16)ctx->remote_port);
	v = nn_decide_in_early(p, netns, &local, lport, &remote, rport);
	if (v || !p)
		goto decided;
	k.netns = netns;
	k.port = p->inbound_port;
	sk = lsn.lookup(&k);
	if (!sk) {
		v = nn_down_in(p);
		goto decided;
	}
	error = nn_sk_assign(ctx, sk, 0);
	nn_sk_release(sk);
	if (error) {
		nn_count(NN_STAT_ASSIGN_FAILED);
		v = nn_down_in(p);
		goto decided;
	}
	nn_count(NN_STAT_IN + NN_R_CAPTURED);
	return SK_PASS;
decided:
	nn_count(NN_STAT_IN + (NN_V_REASON(v) & 31));
	if (NN_V_ACTION(v) != NN_ACT_REFUSE)
		return SK_PASS;
	if (p && NN_V_REASON(v) == NN_R_PROXY_DOWN) {
		struct nn_conn c = {};
		struct nn_agg *a;

		c.dir = NN_DIR_IN;
		c.reason = NN_R_PROXY_DOWN;
		a = nn_totals(&c, p->id);
		if (a)
			a->failed += 1;
	}
	return SK_DROP;
}
