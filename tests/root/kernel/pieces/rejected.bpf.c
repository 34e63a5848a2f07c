/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Compiles, and reads beyond what was checked: the verifier must refuse it. */
int nn_explain(struct __sk_buff *skb)
{
	struct nn_query *q = (void *)(long)skb->data;

	return q->dir;
}
