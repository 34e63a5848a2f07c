/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * cgroup/connect4, connect6: outbound capture. Process context, before the route look-up.
 *
 * Returns 1 to let the connect go on, perhaps to another address, and 0 with -ECONNREFUSED to
 * refuse it. User space sees: the proxy gets the connection on its outbound port, the app sees the
 * address it asked for (peername.bpf.c).
 */
static __always_inline void nn_new_record(struct nn_conn *c, struct bpf_sock_addr *ctx, u64 netns,
					  struct nn_ip *dst, u16 dport, u32 family)
{
	c->cookie = nn_socket_cookie(ctx);
	c->netns = netns;
	c->cgroup = nn_cgroup_id();
	c->start_ns = nn_boot_ns();
	c->pid = nn_pid_tgid() >> 32;
	nn_comm(c->comm, sizeof(c->comm));
	c->remote = *dst;
	c->remote_port = dport;
	__builtin_memset(&c->local, 0, sizeof(c->local));
	c->local_port = 0;
	c->dir = NN_DIR_OUT;
	c->family = family;
	c->state = 0;
	c->flags = 0;
	c->via = NN_VIA_NONE;
}

static __always_inline void nn_refused(struct nn_conn *c, struct nn_pod *p)
{
	struct nn_event e = {};
	struct nn_agg *a;

	c->state = NN_CLOSE;
	e.conn = *c;
	e.end_ns = c->start_ns;
	e.rtt_min_us = 0xffffffff;
	e.err = NN_ECONNREFUSED;
	e.pod_id = p->id;
	nn_emit(&e, NN_EV_REFUSED);
	a = nn_totals(c, p->id);
	if (a)
		a->failed += 1;
}

/*
 * The proxy dials its own pod: gives the socket the mark by which its packets and their answers are
 * routed to lo, for it may come from the client's address. An unmodified ztunnel sets 0x539 and
 * counts on netfilter for the rest.
 */
static __always_inline void nn_mark_own_leg(struct bpf_sock_addr *ctx, struct nn_pod *p, u64 netns,
					    struct nn_ip *dst)
{
	struct nn_cfg *c;
	u32 zero = 0, mark;

	if ((p->flags & NN_POD_IPTABLES) || !nn_is_own(netns, dst))
		return;
	c = cfg.lookup(&zero);
	if (!c)
		return;
	mark = c->tmark;
	nn_setsockopt(ctx, NN_SOL_SOCKET, NN_SO_MARK, &mark, sizeof(mark));
}

/* Decides, records, and says where to connect to: the verdict, `to` filled when it redirects. */
static __always_inline u32 nn_connect_tcp(struct bpf_sock_addr *ctx, struct nn_ip *dst, u16 dport,
					  struct nn_ip *to)
{
	u64 netns = nn_netns_cookie(ctx);
	struct nn_pod *p = pods.lookup(&netns);
	struct bpf_sock *sk = ctx->sk;
	struct nn_conn *c;
	u32 proxy, v, action;

	if (!sk)
		return 0;
	if (!p || !(p->flags & NN_POD_LIVE)) {
		conns.sk_storage_delete(sk);	/* of a connect that failed while this was a pod */
		return 0;
	}
	proxy = nn_is_agent();
	v = nn_decide_out(p, netns, proxy, dst, dport, 0);
	action = NN_V_ACTION(v);
	nn_count(NN_V_REASON(v));
	c = conns.sk_storage_get(sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		/* Without a record the proxy would not learn the destination: refuse, never leak. */
		nn_count(NN_STAT_NO_STORAGE);
		return action == NN_ACT_REDIRECT ? NN_V(NN_V_REASON(v), NN_ACT_REFUSE, 0) : v;
	}
	nn_new_record(c, ctx, netns, dst, dport, nn_is_mapped(dst) ? AF_INET : AF_INET6);
	c->reason = NN_V_REASON(v);
	if (proxy) {
		c->flags |= NN_CF_PROXY;
		nn_mark_own_leg(ctx, p, netns, dst);
	}
	if (action == NN_ACT_REDIRECT || c->reason == NN_R_CAPTURED || c->reason == NN_R_DNS) {
		c->via = p->flags & NN_POD_IPTABLES ? NN_VIA_IPTABLES : NN_VIA_EBPF;
		c->orig = *dst;
		c->orig_port = dport;
	} else {
		__builtin_memset(&c->orig, 0, sizeof(c->orig));
		c->orig_port = 0;
	}
	if (action == NN_ACT_REFUSE) {
		nn_refused(c, p);
		return v;
	}
	if (action == NN_ACT_REDIRECT) {
		c->flags |= NN_CF_CAPTURED;
		if (c->reason != NN_R_DNS)
			*to = nn_is_mapped(dst) ? p->ip4 : p->ip6;
		/* The DNS proxy listens on loopback only; a pod may lack an address of this family. */
		if (nn_is_zero(to))
			nn_loopback(to, nn_is_mapped(dst));
	}
	return v;
}

/* 1: pass, 2: rewrite to *to and *port_be, 0: refuse. */
static __always_inline int nn_connect(struct bpf_sock_addr *ctx, struct nn_ip *dst,
				      struct nn_ip *to, u16 *port_be)
{
	u32 protocol = ctx->protocol;
	u16 dport = nn_swap16((u16)ctx->user_port);
	u32 v;

	if (protocol == NN_IPPROTO_TCP || protocol == NN_IPPROTO_MPTCP)
		v = nn_connect_tcp(ctx, dst, dport, to);
	else if (protocol == NN_IPPROTO_UDP && dport == 53)
		v = nn_send_dns(ctx, dst, to);
	else
		return 1;
	if (NN_V_ACTION(v) == NN_ACT_REFUSE) {
		nn_set_retval(-NN_ECONNREFUSED);
		return 0;
	}
	if (NN_V_ACTION(v) != NN_ACT_REDIRECT)
		return 1;
	*port_be = nn_swap16(NN_V_PORT(v));
	return 2;
}

int nn_connect4(struct bpf_sock_addr *ctx)
{
	struct nn_ip dst = {}, to = {};
	u16 port_be = 0;
	int r;

	dst.w[2] = NN_MAPPED;
	dst.w[3] = ctx->user_ip4;
	r = nn_connect(ctx, &dst, &to, &port_be);
	if (r != 2)
		return r;
	ctx->user_ip4 = to.w[3];
	ctx->user_port = port_be;
	return 1;
}

int nn_connect6(struct bpf_sock_addr *ctx)
{
	struct nn_ip dst = {}, to = {};
	u16 port_be = 0;
	int r;

	dst.w[0] = ctx->user_ip6[0];
	dst.w[1] = ctx->user_ip6[1];
	dst.w[2] = ctx->user_ip6[2];
	dst.w[3] = ctx->user_ip6[3];
	r = nn_connect(ctx, &dst, &to, &port_be);
	if (r != 2)
		return r;
	ctx->user_ip6[0] = to.w[0];
	ctx->user_ip6[1] = to.w[1];
	ctx->user_ip6[2] = to.w[2];
	ctx->user_ip6[3] = to.w[3];
	ctx->user_port = port_be;
	return 1;
}
