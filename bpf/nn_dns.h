/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * UDP to port 53 of a pod with DNS capture goes to 127.0.0.1 or ::1, DNS port. The true server is
 * kept on the socket, so replies and getpeername show it. Several servers asked in turn on one
 * unconnected socket: every reply is shown from the last one.
 */
static __always_inline u32 nn_send_dns(struct bpf_sock_addr *ctx, struct nn_ip *dst,
				       struct nn_ip *to)
{
	u64 netns = nn_netns_cookie(ctx);
	struct nn_pod *p = pods.lookup(&netns);
	struct bpf_sock *sk = ctx->sk;
	struct nn_dns *d;
	u32 v;

	if (!p || !(p->flags & NN_POD_DNS) || !sk)
		return 0;
	v = nn_decide_out(p, netns, nn_is_agent(), dst, 53, 1);
	nn_count(NN_V_REASON(v));
	if (NN_V_ACTION(v) != NN_ACT_REDIRECT)
		return v;
	d = dnsd.sk_storage_get(sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!d) {
		nn_count(NN_STAT_NO_STORAGE);
		return NN_V(NN_V_REASON(v), NN_ACT_REFUSE, 0);
	}
	d->ip = *dst;
	d->port = 53;
	nn_loopback(to, nn_is_mapped(dst));
	return v;
}

/* The true server of a captured DNS socket, when the address given is the DNS proxy's. */
static __always_inline struct nn_dns *nn_dns_server(struct bpf_sock_addr *ctx, struct nn_ip *from)
{
	struct bpf_sock *sk = ctx->sk;
	struct nn_dns *d;
	struct nn_pod *p;
	u64 netns;

	if (!sk || !nn_is_loopback(from))
		return 0;
	d = dnsd.sk_storage_get(sk, 0, 0);
	if (!d)
		return 0;
	netns = nn_netns_cookie(ctx);
	p = pods.lookup(&netns);
	if (p && nn_swap16((u16)ctx->user_port) != p->dns_port)
		return 0;
	return d;
}
