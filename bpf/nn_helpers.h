/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Kernel helpers with their true signatures, context loads, addresses, counters.
 *
 * BCC declares bpf_get_socket_cookie as u32 and lacks newer helpers; each is declared here by
 * number under a name of our own.
 */
#define AF_INET 2
#define AF_INET6 10
#define NN_IPPROTO_TCP 6
#define NN_IPPROTO_UDP 17
#define NN_IPPROTO_MPTCP 262
#define NN_ECONNREFUSED 111
#define NN_SOL_SOCKET 1
#define NN_SO_MARK 36

/* TCP states, as in net/tcp_states.h */
#define NN_ESTABLISHED 1
#define NN_SYN_SENT 2
#define NN_FIN_WAIT1 4
#define NN_FIN_WAIT2 5
#define NN_TIME_WAIT 6
#define NN_CLOSE 7
#define NN_CLOSE_WAIT 8
#define NN_LAST_ACK 9
#define NN_LISTEN 10
#define NN_CLOSING 11

static u64 (*nn_socket_cookie)(void *ctx) = (void *)46;
static u64 (*nn_netns_cookie)(void *ctx) = (void *)122;
static u64 (*nn_ancestor_cgroup)(int level) = (void *)123;
static u64 (*nn_boot_ns)(void) = (void *)125;
static u64 (*nn_pid_tgid)(void) = (void *)14;
static u64 (*nn_cgroup_id)(void) = (void *)80;
static long (*nn_comm)(void *to, u32 size) = (void *)16;
static long (*nn_sk_release)(void *sk) = (void *)86;
static long (*nn_sk_assign)(void *ctx, void *sk, u64 flags) = (void *)124;
static void *(*nn_tcp_sock)(void *sk) = (void *)137;	/* bpf_skc_to_tcp_sock */
static long (*nn_seq_write)(void *seq, const void *data, u32 size) = (void *)127;
static int (*nn_set_retval)(int value) = (void *)187;
static long (*nn_setsockopt)(void *ctx, int level, int name, void *value, int size) = (void *)49;

#define NN_MAPPED __builtin_bswap32(0xffff)

/*
 * A context or socket field by constant offset. clang joins loads of two fields from two branches
 * into one load of a computed address, which the verifier refuses; inline assembly keeps them
 * apart (volatile does not).
 */
#define NN_LD32(type, ptr, field) ({						\
	u32 _v;									\
	asm volatile("%0 = *(u32 *)(%1 + %2)"					\
		     : "=r"(_v) : "r"(ptr), "i"(__builtin_offsetof(type, field)));\
	_v; })

/* A kernel struct's field at an offset read from BTF (-DNN_OFF_...). */
#define NN_LDX(width, ptr, offset) ({						\
	u64 _v;									\
	asm volatile("%0 = *(" width " *)(%1 + %2)"				\
		     : "=r"(_v) : "r"(ptr), "i"(offset));			\
	_v; })

static __always_inline void nn_count(u32 index)
{
	u64 *v = stat.lookup(&index);

	if (v)
		*v += 1;	/* per CPU; a softirq in between may cost one count */
}

static __always_inline u16 nn_swap16(u16 v)
{
	return __builtin_bswap16(v);
}

/*
 * Addresses are compared without branches: each would double what the verifier has to walk, and the
 * program of sk_lookup is verified anew for every pod.
 */
static __always_inline int nn_is_mapped(const struct nn_ip *a)
{
	return !(a->w[0] | a->w[1] | (a->w[2] ^ NN_MAPPED));
}

static __always_inline int nn_is_zero(const struct nn_ip *a)
{
	return !(a->w[0] | a->w[1] | a->w[2] | a->w[3]);
}

static __always_inline int nn_same_ip(const struct nn_ip *a, const struct nn_ip *b)
{
	return !((a->w[0] ^ b->w[0]) | (a->w[1] ^ b->w[1]) | (a->w[2] ^ b->w[2]) |
		 (a->w[3] ^ b->w[3]));
}

/* 127.0.0.0/8, ::1, and the unspecified addresses, which connect() takes for loopback. */
static __always_inline int nn_is_loopback(const struct nn_ip *a)
{
	if (nn_is_mapped(a))
		return (a->w[3] & 0xff) == 127 || !a->w[3];
	return !(a->w[0] | a->w[1] | a->w[2] | (a->w[3] & ~__builtin_bswap32(1)));
}

/* 127.0.0.1 as v4-mapped, or ::1. `a` is zero. */
static __always_inline void nn_loopback(struct nn_ip *a, int v4)
{
	if (v4) {
		a->w[2] = NN_MAPPED;
		a->w[3] = __builtin_bswap32(0x7f000001);
	} else {
		a->w[3] = __builtin_bswap32(1);
	}
}

/* 169.254.7.127 and fd16:9254:7127:1337:ffff:ffff:ffff:ffff: the SNAT addresses of node probes. */
static __always_inline int nn_is_probe_address(const struct nn_ip *a)
{
	if (nn_is_mapped(a))
		return a->w[3] == __builtin_bswap32(0xa9fe077f);
	return !((a->w[0] ^ __builtin_bswap32(0xfd169254)) | (a->w[1] ^ __builtin_bswap32(0x71271337)) |
		 ~(a->w[2] & a->w[3]));
}

/*
 * Whether the current task belongs to the proxy. Only in process context (connect, sendmsg,
 * listen). The mark is not asked: a container with CAP_NET_RAW can set it.
 */
static __always_inline u32 nn_is_agent(void)
{
	u32 zero = 0;
	struct nn_cfg *c = cfg.lookup(&zero);

	return c && c->agent_cgroup && nn_ancestor_cgroup(c->agent_level) == c->agent_cgroup;
}

/* As pod_maps.pod_id: the low half of the cookie, which counts namespaces up from one. */
static __always_inline u32 nn_pod_id(u64 netns)
{
	return (u32)netns;
}

static __always_inline int nn_is_own_port(const struct nn_pod *p, u32 port)
{
	return port == p->outbound_port || port == p->inbound_port || port == p->dns_port;
}
