/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * cgroup/getpeername4, getpeername6: the app sees the address it connected to, not the proxy's.
 * Always returns 1. The record's own peer is the proxy, so a redirected socket is known by its flag.
 */
int nn_peername4(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct nn_ip from = {};
	struct nn_conn *c;
	struct nn_dns *d;

	if (!sk)
		return 1;
	c = conns.sk_storage_get(sk, 0, 0);
	if (c) {
		if (c->flags & NN_CF_CAPTURED) {
			ctx->user_ip4 = c->orig.w[3];
			ctx->user_port = nn_swap16(c->orig_port);
		}
		return 1;
	}
	from.w[2] = NN_MAPPED;
	from.w[3] = ctx->user_ip4;
	d = nn_dns_server(ctx, &from);
	if (d) {
		ctx->user_ip4 = d->ip.w[3];
		ctx->user_port = nn_swap16(d->port);
	}
	return 1;
}

int nn_peername6(struct bpf_sock_addr *ctx)
{
	struct bpf_sock *sk = ctx->sk;
	struct nn_ip from = {};
	struct nn_conn *c;
	struct nn_dns *d;

	if (!sk)
		return 1;
	c = conns.sk_storage_get(sk, 0, 0);
	if (c) {
		if (c->flags & NN_CF_CAPTURED) {
			ctx->user_ip6[0] = c->orig.w[0];
			ctx->user_ip6[1] = c->orig.w[1];
			ctx->user_ip6[2] = c->orig.w[2];
			ctx->user_ip6[3] = c->orig.w[3];
			ctx->user_port = nn_swap16(c->orig_port);
		}
		return 1;
	}
	from.w[0] = ctx->user_ip6[0];
	from.w[1] = ctx->user_ip6[1];
	from.w[2] = ctx->user_ip6[2];
	from.w[3] = ctx->user_ip6[3];
	d = nn_dns_server(ctx, &from);
	if (d) {
		ctx->user_ip6[0] = d->ip.w[0];
		ctx->user_ip6[1] = d->ip.w[1];
		ctx->user_ip6[2] = d->ip.w[2];
		ctx->user_ip6[3] = d->ip.w[3];
		ctx->user_port = nn_swap16(d->port);
	}
	return 1;
}
