/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The decision, once: rows O1..O8 for a connect, I1..I10 for a SYN. Called by the hooks that act,
 * by sockops to label what the hooks did, and by nn_explain for `nodenet capture explain`.
 * The order of the rows is the order of the tests below (docs/parity.md).
 *
 * A verdict is reason | action << 8 | port << 16.
 */
#define NN_V(reason, action, port) ((u32)(reason) | (u32)(action) << 8 | (u32)(port) << 16)
#define NN_V_REASON(v) ((v) & 0xff)
#define NN_V_ACTION(v) (((v) >> 8) & 0xff)
#define NN_V_PORT(v) ((u16)((v) >> 16))

/* A byp entry of the node's own processes dies after the longest possible SYN retry. */
#define NN_PROBE_NS (130ull * 1000000000ull)

static __always_inline int nn_listens(u64 netns, u32 port)
{
	struct nn_lsn_key k = { .netns = netns, .port = port };
	void *sk = lsn.lookup(&k);

	if (!sk)
		return 0;
	nn_sk_release(sk);
	return 1;
}

static __always_inline int nn_port_excluded(const struct nn_pod *p, u64 netns, u16 port, u8 dir)
{
	struct nn_port_key k = { .netns = netns, .port = port, .dir = dir };

	return (p->flags & NN_POD_PORTS) && ports.lookup(&k);
}

static __always_inline int nn_cidr_excluded(const struct nn_pod *p, u64 netns, const struct nn_ip *a)
{
	struct nn_cidr_key k;
	u8 *version;

	if (!(p->flags & NN_POD_CIDRS))
		return 0;
	k.prefixlen = 64 + 128;
	*(u64 *)k.netns_be = __builtin_bswap64(netns);
	__builtin_memcpy(k.ip, a, 16);
	version = cidrs.lookup(&k);
	/* ::/0 is all of IPv6, yet its prefix covers the v4-mapped addresses too */
	return version && (*version == 4) == nn_is_mapped(a);
}

static __always_inline int nn_is_own(u64 netns, const struct nn_ip *a)
{
	struct nn_lip_key k = { .netns = netns, .ip = *a };

	return lips.lookup(&k) != 0;
}

static __always_inline u32 nn_decide_out(struct nn_pod *p, u64 netns, u32 proxy, struct nn_ip *dst,
					 u16 dport, u32 udp)
{
	u32 dns, port;

	if (!p || !(p->flags & NN_POD_LIVE))
		return NN_V(NN_R_NOT_ENROLLED, NN_ACT_PASS, 0);
	dns = dport == 53 && (p->flags & NN_POD_DNS);
	if (udp && !dns)
		return NN_V(NN_R_NOT_TCP, NN_ACT_PASS, 0);
	if (!(p->flags & NN_POD_OUT))
		return NN_V(NN_R_DIRECTION_OFF, NN_ACT_PASS, 0);
	if (proxy)
		return NN_V(NN_R_PROXY, NN_ACT_PASS, 0);
	if (nn_is_loopback(dst))
		return NN_V(NN_R_LOOPBACK, NN_ACT_PASS, 0);
	if (nn_is_own(netns, dst))
		return NN_V(NN_R_SELF, NN_ACT_PASS, 0);
	if (nn_port_excluded(p, netns, dport, 0))
		return NN_V(NN_R_EXCLUDED_PORT, NN_ACT_PASS, 0);
	if (nn_cidr_excluded(p, netns, dst))
		return NN_V(NN_R_EXCLUDED_CIDR, NN_ACT_PASS, 0);
	if (nn_is_probe_address(dst))
		return NN_V(NN_R_PROBE_ADDRESS, NN_ACT_PASS, 0);
	port = dns ? p->dns_port : p->outbound_port;
	if (p->flags & NN_POD_IPTABLES)		/* netfilter does it; only the label is ours */
		return NN_V(dns ? NN_R_DNS : NN_R_CAPTURED, NN_ACT_PASS, port);
	if (!nn_listens(netns, port))
		return NN_V(NN_R_PROXY_DOWN,
			    p->flags & NN_POD_CLOSED_OUT ? NN_ACT_REFUSE : NN_ACT_PASS, 0);
	return NN_V(dns ? NN_R_DNS : NN_R_CAPTURED, NN_ACT_REDIRECT, port);
}

/* Rows I2..I8; 0 when none fires and the listener decides (I9, I10). */
static __always_inline u32 nn_decide_in_early(struct nn_pod *p, u64 netns, struct nn_ip *local,
					      u16 lport, struct nn_ip *remote, u16 rport)
{
	struct nn_byp *b;

	if (nn_is_loopback(local) || nn_is_loopback(remote))
		return NN_V(NN_R_LOOPBACK, NN_ACT_PASS, 0);
	if (nn_same_ip(local, remote))
		return NN_V(NN_R_SELF, NN_ACT_PASS, 0);
	if (nn_is_own(netns, remote))
		return NN_V(NN_R_SELF, NN_ACT_PASS, 0);
	if (!p || !(p->flags & NN_POD_LIVE))
		return NN_V(NN_R_NOT_ENROLLED, NN_ACT_PASS, 0);
	if (lport == p->hbone_port && (p->flags & (NN_POD_IN | NN_POD_INGRESS)))
		return NN_V(NN_R_HBONE, NN_ACT_PASS, 0);
	/*
	 * The proxy's own ports are dropped even where inbound capture is off: its outbound listener
	 * takes any address, and nobody outside the pod may reach it. Not under iptables, where the
	 * SYN has been redirected there by the time it is looked up.
	 */
	if (nn_is_own_port(p, lport) && !(p->flags & NN_POD_IPTABLES))
		return NN_V(NN_R_OWN_PORT, NN_ACT_REFUSE, 0);
	if (!(p->flags & NN_POD_IN))
		return NN_V(NN_R_DIRECTION_OFF, NN_ACT_PASS, 0);
	if (nn_port_excluded(p, netns, lport, 1))
		return NN_V(NN_R_EXCLUDED_PORT, NN_ACT_PASS, 0);
	if (nn_is_probe_address(remote))
		return NN_V(NN_R_PROBE_ADDRESS, NN_ACT_PASS, 0);
	{
		struct nn_byp_key k = {
			.remote = *remote, .local = *local, .remote_port = rport, .local_port = lport,
		};

		b = byp.lookup(&k);
		if (b && (b->reason == NN_R_FROM_PROXY || nn_boot_ns() - b->since_ns < NN_PROBE_NS))
			return NN_V(b->reason, NN_ACT_PASS, 0);
	}
	return 0;
}

static __always_inline u32 nn_down_in(const struct nn_pod *p)
{
	return NN_V(NN_R_PROXY_DOWN, p->flags & NN_POD_CLOSED_IN ? NN_ACT_REFUSE : NN_ACT_PASS, 0);
}

static __always_inline u32 nn_decide_in(struct nn_pod *p, u64 netns, struct nn_ip *local, u16 lport,
					struct nn_ip *remote, u16 rport)
{
	u32 v = nn_decide_in_early(p, netns, local, lport, remote, rport);

	if (v)
		return v;
	if (p->flags & NN_POD_IPTABLES)
		return NN_V(NN_R_CAPTURED, NN_ACT_PASS, p->inbound_port);
	if (!nn_listens(netns, p->inbound_port))
		return nn_down_in(p);
	return NN_V(NN_R_CAPTURED, NN_ACT_REDIRECT, p->inbound_port);
}
