/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Every map, once. nodenet/abi.py (MAPS) declares the same types and bounds for user space, which
 * creates and pins them; the loader refuses to start when the two disagree.
 *
 * The programs and maps are shared by all pods of the node; a pod is its network namespace's
 * cookie (64 bit, never reused while the kernel runs).
 */

/* Written at start by the capture, read by connect, sockops. One entry. */
BPF_ARRAY(cfg, struct nn_cfg, 1);

/* Enrolment: written last by user space, so it is the switch. Gone: the pod is not captured. */
BPF_F_TABLE("hash", u64, struct nn_pod, pods, 4096, 0);

/*
 * The addresses of each pod, to tell its calls to itself; and each address once more under netns 0,
 * to tell the node's processes whose pod it is. Two pods may have the same address. User space,
 * before `pods`.
 */
BPF_F_TABLE("hash", struct nn_lip_key, struct nn_lip, lips, 32768, BPF_F_NO_PREALLOC);

/* Excluded ports per pod and direction. Only looked at when the pod has NN_POD_PORTS. */
BPF_F_TABLE("hash", struct nn_port_key, u8, ports, 65536, BPF_F_NO_PREALLOC);

/*
 * Excluded destinations per pod, outbound; the value is the IP version, 4 or 6. Only looked at when
 * the pod has NN_POD_CIDRS.
 */
BPF_F_TABLE("lpm_trie", struct nn_cidr_key, u8, cidrs, 16384, BPF_F_NO_PREALLOC);

/*
 * Original destination between SYN and accept: sockops writes it at connect, the proxy's child
 * socket copies it, and the client's close takes it out. A full map loses the oldest; when that
 * one was still to be copied it is counted (NN_STAT_NO_ORIGINAL) and the proxy refuses it.
 */
BPF_F_TABLE("lru_hash", struct nn_flow_key, struct nn_conn, flows, 16384, 0);

/*
 * Connections that sk_lookup must leave to the app: the proxy's own leg, and the node's probes.
 * Written at connect, taken out when the app has accepted or the proxy's socket has closed.
 */
BPF_F_TABLE("lru_hash", struct nn_byp_key, struct nn_byp, byp, 16384, 0);

/*
 * The proxy's listeners by pod and port. The kernel fills it (sockops at listen, only for the
 * agent's cgroup) and empties it when the socket closes: an entry means that the proxy listens.
 */
struct lsn_table_t {
	struct nn_lsn_key key;
	u64 leaf;
	u64 *(*lookup)(struct nn_lsn_key *);
	int (*update)(struct nn_lsn_key *, u64 *);
	int (*delete)(struct nn_lsn_key *);
	int (*sock_hash_update)(void *, void *, u64);
	u32 max_entries;
	int flags;
};
__attribute__((section("maps/sockhash"))) struct lsn_table_t lsn = { .max_entries = 16384 };
BPF_ANNOTATE_KV_PAIR(lsn, struct nn_lsn_key, u64);

/*
 * The record of each connection, kept on the socket: no bound to hit, no eviction, freed with it.
 * BPF_F_CLONE: a listener's entry (who listens) is copied to each accepted socket by the kernel.
 */
struct conns_table_t {
	int key;
	struct nn_conn leaf;
	void *(*sk_storage_get)(void *, void *, int);
	int (*sk_storage_delete)(void *);
	u32 flags;
};
__attribute__((section("maps/sk_storage"))) struct conns_table_t conns = {
	.flags = BPF_F_NO_PREALLOC | BPF_F_CLONE,
};
BPF_ANNOTATE_KV_PAIR(conns, int, struct nn_conn);

/* True destination of a captured DNS socket, to put back into what it receives. */
struct dnsd_table_t {
	int key;
	struct nn_dns leaf;
	void *(*sk_storage_get)(void *, void *, int);
	int (*sk_storage_delete)(void *);
	u32 flags;
};
__attribute__((section("maps/sk_storage"))) struct dnsd_table_t dnsd = {
	.flags = BPF_F_NO_PREALLOC,
};
BPF_ANNOTATE_KV_PAIR(dnsd, int, struct nn_dns);

/*
 * The last connections that closed, a ring: number live[NN_LIVE_CLOSED] goes over the oldest. Not a
 * hash by cookie: an LRU hash cost as much as all the rest of a connection's record.
 * A cookie of 0 is a slot that nothing was written to yet, or that is being written.
 */
BPF_ARRAY(closed, struct nn_event, NN_CLOSED_KEPT);

/* Events for readers, only while `watch` says that somebody reads. Full: NN_STAT_EVENTS_LOST. */
BPF_RINGBUF_OUTPUT(evs, 1024);

/* Totals by pod, direction, reason, backend. User space removes a pod's entries with the pod. */
BPF_F_TABLE("percpu_hash", struct nn_agg_key, struct nn_agg, agg, 65536, BPF_F_NO_PREALLOC);

/* One counter a decision row and an error (nn_abi.h). */
BPF_F_TABLE("percpu_array", u32, u64, stat, NN_STAT_MAX, 0);

/* How many connections are recorded now (cfg.max_live is the bound), and how many have closed. */
BPF_ARRAY(live, u64, NN_LIVE_MAX);

/* Per event kind: until when (CLOCK_BOOTTIME ns) somebody wants it. Readers push it forward. */
BPF_ARRAY(watch, u64, NN_EV_KINDS);
