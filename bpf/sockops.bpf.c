/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * sock_ops: the record of each connection from open to close, the hand-over of the original
 * destination to the proxy, and the register of the proxy's listeners. Runs a handful of times per
 * connection, never per packet. Always returns 1.
 *
 * TCP_LISTEN_CB (process context of listen): who listens; the agent's listeners go into lsn.
 * TCP_CONNECT_CB (source port is chosen, SYN not yet sent): record, flows, byp.
 * PASSIVE_ESTABLISHED_CB (softirq, before accept can return): record, hand-over.
 * STATE_CB: established, and the final counters at close.
 */
static __always_inline void nn_addresses(struct bpf_sock_ops *s, struct nn_ip *local,
					 struct nn_ip *remote)
{
	if (NN_LD32(struct bpf_sock_ops, s, family) == AF_INET) {
		local->w[0] = local->w[1] = remote->w[0] = remote->w[1] = 0;
		local->w[2] = remote->w[2] = NN_MAPPED;
		local->w[3] = NN_LD32(struct bpf_sock_ops, s, local_ip4);
		remote->w[3] = NN_LD32(struct bpf_sock_ops, s, remote_ip4);
	} else {
		local->w[0] = NN_LD32(struct bpf_sock_ops, s, local_ip6[0]);
		local->w[1] = NN_LD32(struct bpf_sock_ops, s, local_ip6[1]);
		local->w[2] = NN_LD32(struct bpf_sock_ops, s, local_ip6[2]);
		local->w[3] = NN_LD32(struct bpf_sock_ops, s, local_ip6[3]);
		remote->w[0] = NN_LD32(struct bpf_sock_ops, s, remote_ip6[0]);
		remote->w[1] = NN_LD32(struct bpf_sock_ops, s, remote_ip6[1]);
		remote->w[2] = NN_LD32(struct bpf_sock_ops, s, remote_ip6[2]);
		remote->w[3] = NN_LD32(struct bpf_sock_ops, s, remote_ip6[3]);
	}
}

static __always_inline u16 nn_remote_port(struct bpf_sock_ops *s)
{
	/* network order in the upper half of the word */
	return nn_swap16((u16)(NN_LD32(struct bpf_sock_ops, s, remote_port) >> 16));
}

/* Counts the connection in and asks for its state changes; 0 when max_live is reached. */
static __always_inline int nn_admit(struct bpf_sock_ops *s, struct nn_conn *c, u32 kind)
{
	u32 zero = 0, pod_id = nn_pod_id(c->netns);
	struct nn_agg *a;
	u64 *until;

	if (!(c->flags & NN_CF_PROXY)) {
		struct nn_cfg *config = cfg.lookup(&zero);
		u64 *n = live.lookup(&zero);

		/* signed: a count that was set too low must not wrap into "full" */
		if (!n || !config || (s64)*n >= (s64)config->max_live) {
			nn_count(NN_STAT_OVER_LIMIT);
			return 0;
		}
		__sync_fetch_and_add(n, 1);
		c->flags |= NN_CF_COUNTED;
	}
	bpf_sock_ops_cb_flags_set(s, BPF_SOCK_OPS_STATE_CB_FLAG);
	a = nn_totals(c, pod_id);
	if (a)
		a->opened += 1;
	until = watch.lookup(&kind);
	if (until && *until >= c->start_ns) {
		struct nn_event e = {};

		e.conn = *c;
		e.end_ns = c->start_ns;
		e.rtt_min_us = 0xffffffff;
		e.pod_id = pod_id;
		nn_emit(&e, kind);
	}
	return 1;
}

static __always_inline void nn_on_listen(struct bpf_sock_ops *s, struct bpf_sock *sk)
{
	u64 netns = nn_netns_cookie(s);
	struct nn_pod *p = pods.lookup(&netns);
	u32 port = NN_LD32(struct bpf_sock_ops, s, local_port);
	struct nn_conn *c;
	u32 agent;

	if (!p || (p->flags & NN_POD_HOST))
		return;
	agent = nn_is_agent();
	if (agent && (nn_is_own_port(p, port) || port == p->hbone_port)) {
		struct nn_lsn_key k = { .netns = netns, .port = port };

		/* a statement of its own: the rewriter ends this call with a semicolon */
		int error = lsn.sock_hash_update(s, &k, BPF_ANY);

		nn_count(error ? NN_STAT_LISTENER_FAILED : NN_STAT_LISTENER_OK);
	}
	c = conns.sk_storage_get(sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		nn_count(NN_STAT_NO_STORAGE);
		return;
	}
	__builtin_memset(c, 0, sizeof(*c));	/* a socket may have connected before it listens */
	c->netns = netns;
	c->cgroup = nn_cgroup_id();
	c->start_ns = nn_boot_ns();
	c->pid = nn_pid_tgid() >> 32;
	nn_comm(c->comm, sizeof(c->comm));
	c->local_port = port;
	c->dir = NN_DIR_IN;
	c->state = NN_LISTEN;
	c->flags = NN_CF_LISTENER | (agent ? NN_CF_PROXY : 0);
}

static __always_inline void nn_on_connect(struct bpf_sock_ops *s, struct bpf_sock *sk)
{
	struct nn_conn *c = conns.sk_storage_get(sk, 0, 0);
	u32 host = 0, node_id = 0, admitted;
	struct nn_ip local, remote;
	struct nn_lip *lip;
	u16 lport, rport;
	u64 netns;

	if (c && c->state) {	/* of an earlier connect() on this socket, before the pod was taken out */
		conns.sk_storage_delete(sk);
		c = 0;
	}
	/* A record means a pod, live when this connect() began; without one only a host matters. */
	if (c) {
		netns = c->netns;
	} else {
		struct nn_pod *p;

		netns = nn_netns_cookie(s);
		p = pods.lookup(&netns);
		if (!p || !(p->flags & NN_POD_HOST))
			return;
		host = 1;
		node_id = p->id;
	}
	nn_addresses(s, &local, &remote);
	lport = NN_LD32(struct bpf_sock_ops, s, local_port);
	rport = nn_remote_port(s);
	if (host || (c->flags & NN_CF_PROXY)) {
		/* what sk_lookup must leave alone: probes of this node, and the proxy to its own pod */
		struct nn_lip_key a = { .netns = host ? 0 : netns, .ip = remote };

		lip = lips.lookup(&a);
		if (lip && (!host || lip->node_id == node_id)) {
			struct nn_byp_key k = {
				.remote = local, .local = remote,
				.remote_port = lport, .local_port = rport,
			};
			struct nn_byp b = {
				.since_ns = nn_boot_ns(),
				.reason = host ? NN_R_HOST_PROBE : NN_R_FROM_PROXY,
			};

			byp.update(&k, &b);
			if (host) {
				/* no connection of a pod: only so that the entry goes with the socket */
				c = conns.sk_storage_get(sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
				if (!c)
					return;
				__builtin_memset(c, 0, sizeof(*c));
				c->local = local;
				c->remote = remote;
				c->local_port = lport;
				c->remote_port = rport;
				c->state = NN_SYN_SENT;
				c->flags = NN_CF_BYP;
				bpf_sock_ops_cb_flags_set(s, BPF_SOCK_OPS_STATE_CB_FLAG);
				return;
			}
			c->flags |= NN_CF_BYP;
		}
	}
	if (host)
		return;
	c->local = local;
	c->remote = remote;
	c->local_port = lport;
	c->remote_port = rport;
	c->state = NN_SYN_SENT;
	admitted = nn_admit(s, c, NN_EV_OPEN);
	if (c->flags & NN_CF_CAPTURED) {
		struct nn_flow_key k = { .netns = netns, .ip = local, .port = lport };

		flows.update(&k, c);
	} else if (!admitted && !(c->flags & NN_CF_BYP)) {
		conns.sk_storage_delete(sk);
	}
}

static __always_inline void nn_on_accept(struct bpf_sock_ops *s, struct bpf_sock *sk)
{
	u64 netns = nn_netns_cookie(s);
	struct nn_pod *p = pods.lookup(&netns);
	struct nn_conn *c;
	u32 proxy;

	if (!p || !(p->flags & NN_POD_LIVE)) {
		conns.sk_storage_delete(sk);	/* what a listener of a former pod handed down */
		return;
	}
	c = conns.sk_storage_get(sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!c) {
		nn_count(NN_STAT_NO_STORAGE);
		return;
	}
	/* A listener older than the enrolment left no template: then who listens is not known. */
	proxy = c->flags & NN_CF_PROXY;
	c->flags = proxy;
	c->netns = netns;
	c->cookie = nn_socket_cookie(s);
	c->start_ns = nn_boot_ns();
	c->dir = NN_DIR_IN;
	nn_addresses(s, &c->local, &c->remote);
	c->family = nn_is_mapped(&c->local) ? AF_INET : AF_INET6;
	c->local_port = NN_LD32(struct bpf_sock_ops, s, local_port);
	c->remote_port = nn_remote_port(s);
	c->state = NN_ESTABLISHED;
	c->via = NN_VIA_NONE;
	c->reason = NN_R_NONE;
	if (proxy && (c->local_port == p->outbound_port || c->local_port == p->dns_port)) {
		struct nn_flow_key k = { .netns = netns, .ip = c->remote, .port = c->remote_port };
		struct nn_conn *from = flows.lookup(&k);

		c->reason = NN_R_CAPTURED;
		if (from) {
			/* who connected: the proxy's record tells the client, not the proxy */
			c->orig = from->orig;
			c->orig_port = from->orig_port;
			c->pid = from->pid;
			c->cgroup = from->cgroup;
			__builtin_memcpy(c->comm, from->comm, sizeof(c->comm));
			c->reason = from->reason;
			c->via = from->via;
			c->flags |= NN_CF_HANDED;
			/* else at the client's close, which is not in the way of its connect() */
			if (!(from->flags & NN_CF_COUNTED))
				flows.delete(&k);
		} else {
			c->flags |= NN_CF_ORPHAN;
			if (!(p->flags & NN_POD_IPTABLES))
				nn_count(NN_STAT_NO_ORIGINAL);
		}
	} else if (proxy) {
		c->reason = c->local_port == p->hbone_port ? NN_R_HBONE : NN_R_CAPTURED;
		if (c->reason == NN_R_CAPTURED) {
			c->via = p->flags & NN_POD_IPTABLES ? NN_VIA_IPTABLES : NN_VIA_EBPF;
			c->orig = c->local;
			c->orig_port = c->local_port;
		}
	} else {
		/* sock_ops cannot release a looked-up listener, so rows I9 and I10 follow from the rest */
		u32 v = nn_decide_in_early(p, netns, &c->local, c->local_port, &c->remote,
					   c->remote_port);

		c->reason = NN_V_REASON(v);
		if (c->reason == NN_R_FROM_PROXY) {
			/* seen from the app this connection was captured; the row was I10 */
			c->reason = NN_R_CAPTURED;
			c->via = p->flags & NN_POD_IPTABLES ? NN_VIA_IPTABLES : NN_VIA_EBPF;
			c->orig = c->local;
			c->orig_port = c->local_port;
		} else if (!v) {
			/* the app has it: passed while the proxy was down, or its SYN is older */
			c->reason = p->flags & NN_POD_CLOSED_IN ? NN_R_PRE_ENROLMENT : NN_R_PROXY_DOWN;
		}
		if (NN_V_REASON(v) == NN_R_FROM_PROXY || NN_V_REASON(v) == NN_R_HOST_PROBE) {
			struct nn_byp_key k = {
				.remote = c->remote, .local = c->local,
				.remote_port = c->remote_port, .local_port = c->local_port,
			};

			byp.delete(&k);
		}
	}
	if (!nn_admit(s, c, NN_EV_ESTABLISHED) && !(c->flags & NN_CF_HANDED))
		conns.sk_storage_delete(sk);
}

/*
 * The slot of `closed` for one more connection; its cookie is 0 until the record is whole. The
 * record is built there and not on the stack: 208 bytes are written once.
 */
static __always_inline struct nn_event *nn_closed_slot(void)
{
	u32 index = NN_LIVE_CLOSED;
	u64 *n = live.lookup(&index);
	struct nn_event *e;

	if (!n)
		return 0;
	index = __sync_fetch_and_add(n, 1) & (NN_CLOSED_KEPT - 1);
	e = closed.lookup(&index);
	if (e)
		*(volatile u64 *)&e->conn.cookie = 0;
	return e;
}

static __always_inline void nn_on_close(struct bpf_sock_ops *s, struct bpf_sock *sk,
					struct nn_conn *c, u32 old_state)
{
	struct nn_event *e;
	struct nn_pod *p;
	struct nn_agg *a;
	u32 now = NN_LIVE_NOW;
	void *t;

	if (c->flags & NN_CF_BYP) {
		struct nn_byp_key k = {
			.remote = c->local, .local = c->remote,
			.remote_port = c->local_port, .local_port = c->remote_port,
		};

		byp.delete(&k);
	}
	if (!c->cookie)		/* a process of the node: nobody's connection */
		return;
	if (c->flags & NN_CF_CAPTURED) {
		struct nn_flow_key k = { .netns = c->netns, .ip = c->local, .port = c->local_port };

		flows.delete(&k);
	}
	if (c->flags & NN_CF_COUNTED) {
		u64 *n = live.lookup(&now);

		if (n)
			__sync_fetch_and_add(n, -1);
		c->flags &= ~NN_CF_COUNTED;
	}
	e = nn_closed_slot();
	t = nn_tcp_sock(sk);
	if (!e || !t)
		return;
	p = pods.lookup(&c->netns);
	__builtin_memcpy(&e->conn.netns, &c->netns, sizeof(*c) - sizeof(c->cookie));
	e->end_ns = nn_boot_ns();
	e->old_state = old_state;
	e->pod_id = p ? p->id : 0;
	nn_read_counters(e, t);
	e->kind = NN_EV_CLOSED;
	asm volatile("" ::: "memory");
	*(volatile u64 *)&e->conn.cookie = c->cookie;
	nn_emit(e, NN_EV_CLOSED);
	if (!p)
		return;
	a = nn_totals(c, p->id);
	if (!a)
		return;
	a->closed += 1;
	if (old_state == NN_SYN_SENT)
		a->failed += 1;
	a->bytes_sent += e->bytes_sent;
	a->bytes_received += e->bytes_received;
	a->retransmits += e->retransmits;
	a->segs_out += e->segs_out;
}

/* Only three states matter; the others cost no look-up. c->state is right again at close. */
static __always_inline void nn_on_state(struct bpf_sock_ops *s, struct bpf_sock *sk)
{
	u32 old_state = s->args[0], state = s->args[1];
	u32 kind = NN_EV_ESTABLISHED;
	struct nn_conn *c;
	u64 *until;

	if (state == NN_ESTABLISHED) {
		until = watch.lookup(&kind);
		if (!until || !*until)
			return;
	} else if (state != NN_CLOSE && state != NN_CLOSE_WAIT) {
		return;
	}
	c = conns.sk_storage_get(sk, 0, 0);
	if (!c || (c->flags & NN_CF_LISTENER))
		return;
	c->state = state;
	if (state == NN_CLOSE_WAIT) {
		c->flags |= NN_CF_PEER_FIN;
	} else if (state == NN_CLOSE) {
		nn_on_close(s, sk, c, old_state);
	} else if (c->dir == NN_DIR_OUT) {	/* inbound, accept has told it already */
		struct nn_pod *p = pods.lookup(&c->netns);
		struct nn_event e = {};

		e.conn = *c;
		e.end_ns = nn_boot_ns();
		e.rtt_min_us = 0xffffffff;
		e.pod_id = p ? p->id : 0;
		nn_emit(&e, kind);
	}
}

int nn_sockops(struct bpf_sock_ops *s)
{
	u32 op = s->op;
	struct bpf_sock *sk;

	if (op != BPF_SOCK_OPS_TCP_CONNECT_CB && op != BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB &&
	    op != BPF_SOCK_OPS_STATE_CB && op != BPF_SOCK_OPS_TCP_LISTEN_CB)
		return 1;
	sk = s->sk;
	if (!sk)
		return 1;
	if (op == BPF_SOCK_OPS_STATE_CB)
		nn_on_state(s, sk);
	else if (op == BPF_SOCK_OPS_TCP_CONNECT_CB)
		nn_on_connect(s, sk);
	else if (op == BPF_SOCK_OPS_PASSIVE_ESTABLISHED_CB)
		nn_on_accept(s, sk);
	else
		nn_on_listen(s, sk);
	return 1;
}
