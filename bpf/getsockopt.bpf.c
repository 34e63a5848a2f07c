/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * cgroup/getsockopt on the agent's cgroup: answers SO_ORIGINAL_DST (80) at SOL_IP for IPv4 and
 * v4-mapped originals, at SOL_IPV6 for IPv6 ones, as conntrack would; so a proxy that knows nothing
 * of nodenet works. The kernel has run first and left an error in retval. Always returns 1.
 */
#define NN_SO_ORIGINAL_DST 80
#define NN_SOL_IP 0
#define NN_SOL_IPV6 41

int nn_getsockopt(struct bpf_sockopt *ctx)
{
	int level = ctx->level;
	struct bpf_sock *sk = ctx->sk;
	struct nn_conn *c;
	u8 *v = ctx->optval;
	int mapped;

	if (ctx->optname != NN_SO_ORIGINAL_DST || (level != NN_SOL_IP && level != NN_SOL_IPV6) || !sk)
		return 1;
	c = conns.sk_storage_get(sk, 0, 0);
	if (!c || !(c->flags & NN_CF_HANDED))
		return 1;
	mapped = nn_is_mapped(&c->orig);
	if (level == NN_SOL_IP) {		/* struct sockaddr_in */
		if (!mapped || v + 16 > (u8 *)ctx->optval_end)
			return 1;
		*(u16 *)v = AF_INET;
		*(u16 *)(v + 2) = nn_swap16(c->orig_port);
		*(u32 *)(v + 4) = c->orig.w[3];
		*(u64 *)(v + 8) = 0;
		ctx->optlen = 16;
	} else {				/* struct sockaddr_in6 */
		if (mapped || v + 28 > (u8 *)ctx->optval_end)
			return 1;
		*(u16 *)v = AF_INET6;
		*(u16 *)(v + 2) = nn_swap16(c->orig_port);
		*(u32 *)(v + 4) = 0;
		*(u32 *)(v + 8) = c->orig.w[0];
		*(u32 *)(v + 12) = c->orig.w[1];
		*(u32 *)(v + 16) = c->orig.w[2];
		*(u32 *)(v + 20) = c->orig.w[3];
		*(u32 *)(v + 24) = 0;
		ctx->optlen = 28;
	}
	/* Keeps clang from joining the two context stores into one, which is refused. */
	asm volatile("" ::: "memory");
	ctx->retval = 0;
	return 1;
}
