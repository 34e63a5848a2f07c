/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Line 5 names what is not declared. */
int nn_explain(struct __sk_buff *skb)
{
	return nn_no_such_thing;
}
