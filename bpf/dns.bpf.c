/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * cgroup/sendmsg4, sendmsg6: unconnected UDP to port 53 (1: send, 0: refuse).
 * cgroup/recvmsg4, recvmsg6: what a captured socket receives seems to come from the true server
 * (always 1). Connected UDP is in connect.bpf.c.
 */
int nn_sendmsg4(struct bpf_sock_addr *ctx)
{
	struct nn_ip dst = {}, to = {};
	u32 v;

	if (ctx->protocol != NN_IPPROTO_UDP || nn_swap16((u16)ctx->user_port) != 53)
		return 1;
	dst.w[2] = NN_MAPPED;
	dst.w[3] = ctx->user_ip4;
	v = nn_send_dns(ctx, &dst, &to);
	if (NN_V_ACTION(v) == NN_ACT_REFUSE) {
		nn_set_retval(-NN_ECONNREFUSED);
		return 0;
	}
	if (NN_V_ACTION(v) == NN_ACT_REDIRECT) {
		ctx->user_ip4 = to.w[3];
		ctx->user_port = nn_swap16(NN_V_PORT(v));
	}
	return 1;
}

int nn_sendmsg6(struct bpf_sock_addr *ctx)
{
	struct nn_ip dst = {}, to = {};
	u32 v;

	if (ctx->protocol != NN_IPPROTO_UDP || nn_swap16((u16)ctx->user_port) != 53)
		return 1;
	dst.w[0] = ctx->user_ip6[0];
	dst.w[1] = ctx->user_ip6[1];
	dst.w[2] = ctx->user_ip6[2];
	dst.w[3] = ctx->user_ip6[3];
	v = nn_send_dns(ctx, &dst, &to);
	if (NN_V_ACTION(v) == NN_ACT_REFUSE) {
		nn_set_retval(-NN_ECONNREFUSED);
		return 0;
	}
	if (NN_V_ACTION(v) == NN_ACT_REDIRECT) {
		ctx->user_ip6[0] = to.w[0];
		ctx->user_ip6[1] = to.w[1];
		ctx->user_ip6[2] = to.w[2];
		ctx->user_ip6[3] = to.w[3];
		ctx->user_port = nn_swap16(NN_V_PORT(v));
	}
	return 1;
}

int nn_recvmsg4(struct bpf_sock_addr *ctx)
{
	struct nn_ip from = {};
	struct nn_dns *d;

	from.w[2] = NN_MAPPED;
	from.w[3] = ctx->user_ip4;
	d = nn_dns_server(ctx, &from);
	if (d) {
		ctx->user_ip4 = d->ip.w[3];
		ctx->user_port = nn_swap16(d->port);
	}
	return 1;
}

int nn_recvmsg6(struct bpf_sock_addr *ctx)
{
	struct nn_ip from = {};
	struct nn_dns *d;

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
