/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * Every struct and number that user space sees. nodenet/abi.py is the one mirror; a unit test
 * compares the two field by field.
 *
 * Addresses are 16 bytes in network order, IPv4 as v4-mapped. Ports are host order unless the
 * name ends in _be. Natural alignment, padding written out (pad*), little endian.
 */
#ifndef NN_ABI_H
#define NN_ABI_H

#include <linux/types.h>

#define NN_SCHEMA 1

/* nn_pod.flags */
#define NN_POD_OUT 1u		/* capture outbound */
#define NN_POD_IN 2u		/* capture inbound */
#define NN_POD_DNS 4u		/* capture port 53, UDP and TCP */
#define NN_POD_CLOSED_OUT 8u	/* no proxy listener: refuse the connect */
#define NN_POD_CLOSED_IN 16u	/* no proxy listener: drop the SYN */
#define NN_POD_INGRESS 32u	/* gateway: inbound plaintext goes to the app */
#define NN_POD_DIRECT 64u	/* reserved: same-node direct verdicts */
#define NN_POD_IPTABLES 128u	/* redirected by iptables; the programs here only record */
#define NN_POD_HOST 256u	/* not a pod: a node's own namespace; id is the node's */
#define NN_POD_LIVE 512u	/* enrolment complete: connections are recorded */
#define NN_POD_PORTS 1024u	/* has entries in ports */
#define NN_POD_CIDRS 2048u	/* has entries in cidrs */

/* nn_conn.reason: the row that decided. The rule name (O1..O8, I1..I10) follows from it and dir. */
enum nn_reason {
	NN_R_NONE = 0,
	NN_R_NOT_TCP = 1,
	NN_R_NOT_ENROLLED = 2,
	NN_R_DIRECTION_OFF = 3,
	NN_R_PROXY = 4,
	NN_R_LOOPBACK = 5,
	NN_R_SELF = 6,
	NN_R_EXCLUDED_PORT = 7,
	NN_R_EXCLUDED_CIDR = 8,
	NN_R_PROXY_DOWN = 9,
	NN_R_CAPTURED = 10,
	NN_R_DNS = 11,
	NN_R_KERNEL_LOOKUP = 12,
	NN_R_HBONE = 13,
	NN_R_OWN_PORT = 14,
	NN_R_PROBE_ADDRESS = 15,
	NN_R_HOST_PROBE = 16,
	NN_R_FROM_PROXY = 17,
	NN_R_PRE_ENROLMENT = 18,
	NN_R_MAX = 32,
};

/* What a decision does. */
#define NN_ACT_PASS 0u
#define NN_ACT_REDIRECT 1u
#define NN_ACT_REFUSE 2u

#define NN_DIR_OUT 1u		/* active open */
#define NN_DIR_IN 2u		/* passive open */

/* nn_conn.flags */
#define NN_CF_CAPTURED 1u	/* the app's connect was rewritten; orig is the true peer */
#define NN_CF_HANDED 2u		/* proxy's accepted outbound socket, orig handed over */
#define NN_CF_ORPHAN 4u		/* proxy accepted on the outbound port, but no original was known */
#define NN_CF_PROXY 8u		/* the proxy's own socket */
#define NN_CF_PEER_FIN 16u	/* peer closed first */
#define NN_CF_BYP 32u		/* this socket wrote a byp entry, to be removed with it */
#define NN_CF_COUNTED 64u	/* counted in the live counter */
#define NN_CF_LISTENER 128u	/* template on a listening socket, cloned to its children */

/* nn_conn.via */
#define NN_VIA_NONE 0u
#define NN_VIA_EBPF 1u
#define NN_VIA_IPTABLES 2u

/* nn_event.kind */
#define NN_EV_LIVE 0u		/* from the iterator */
#define NN_EV_OPEN 1u
#define NN_EV_ESTABLISHED 2u
#define NN_EV_REFUSED 3u
#define NN_EV_CLOSED 4u
#define NN_EV_KINDS 5u

/* indices into the stat array beyond the reasons: [0,32) outbound, [32,64) inbound by reason */
#define NN_STAT_IN 32u
#define NN_STAT_EVENTS_LOST 64u		/* ring buffer full */
#define NN_STAT_NO_STORAGE 65u		/* socket storage could not be allocated */
#define NN_STAT_NO_ORIGINAL 66u		/* accepted on the outbound port without a flow entry */
#define NN_STAT_LISTENER_FAILED 67u	/* listener could not be put into lsn */
#define NN_STAT_ASSIGN_FAILED 68u	/* bpf_sk_assign refused the listener */
#define NN_STAT_OVER_LIMIT 69u		/* not recorded: max_live reached */
#define NN_STAT_AGG_FULL 70u		/* agg entry could not be made */
#define NN_STAT_LISTENER_OK 71u
#define NN_STAT_MAX 128u

/* indices into live */
#define NN_LIVE_NOW 0u		/* connections recorded now */
#define NN_LIVE_CLOSED 1u	/* connections closed since the programs were loaded */
#define NN_LIVE_MAX 2u

/*
 * Stands for the pod's own cookie in nn_sk_lookup, which no helper tells it: the loader puts the
 * cookie in its place, so each pod has a program of its own.
 */
#define NN_SELF_COOKIE 0x6e6f64656e657421ll

#define NN_CLOSED_KEPT 16384u	/* entries of closed, a power of two */

struct nn_ip {
	__u32 w[4];
};

/* cfg[0] */
struct nn_cfg {
	__u32 schema;		/* NN_SCHEMA */
	__u32 mark;		/* proxy's sockets, compatibility only: 0x539 */
	__u32 mark_mask;	/* 0xfff */
	__u32 tmark;		/* proxy to app: 0x111 */
	__u32 agent_level;	/* depth of the agent's cgroup, root = 0 */
	__u32 max_live;		/* records kept at most */
	__u64 agent_cgroup;	/* cgroup id (inode) of the agent */
	__u64 build;		/* first 8 bytes of the programs' source hash; written last */
};

/* pods[netns cookie] */
struct nn_pod {
	__u32 flags;
	__u32 id;		/* pod id, or the node id for NN_POD_HOST */
	struct nn_ip ip4;	/* v4-mapped, zero when the pod has none */
	struct nn_ip ip6;
	__u16 outbound_port;
	__u16 inbound_port;
	__u16 dns_port;
	__u16 hbone_port;
	__u64 enrolled_ns;	/* CLOCK_BOOTTIME when the enrolment went live */
};

/* netns 0: for the node's own processes, which know only the address */
struct nn_lip_key {
	__u64 netns;
	struct nn_ip ip;
};

/* lips[netns, ip] */
struct nn_lip {
	__u64 netns;
	__u32 pod_id;
	__u32 node_id;		/* the node whose own processes may probe this address */
};

struct nn_port_key {
	__u64 netns;
	__u16 port;
	__u8 dir;
	__u8 pad1;
	__u32 pad2;
};

/* LPM key: prefixlen = 64 + bits of the v4-mapped address; netns_be big endian */
struct nn_cidr_key {
	__u32 prefixlen;
	__u8 netns_be[8];
	__u8 ip[16];
};

struct nn_flow_key {
	__u64 netns;
	struct nn_ip ip;
	__u16 port;
	__u16 pad1;
	__u32 pad2;
};

struct nn_byp_key {
	struct nn_ip remote;
	struct nn_ip local;
	__u16 remote_port;
	__u16 local_port;
	__u32 pad;
};

struct nn_byp {
	__u64 since_ns;		/* CLOCK_BOOTTIME */
	__u32 reason;		/* NN_R_HOST_PROBE or NN_R_FROM_PROXY */
	__u32 pad;
};

struct nn_lsn_key {
	__u64 netns;
	__u32 port;
	__u32 pad;
};

struct nn_dns {
	struct nn_ip ip;
	__u16 port;
	__u16 pad1;
	__u32 pad2;
};

struct nn_conn {
	__u64 cookie;
	__u64 netns;
	__u64 cgroup;
	__u64 start_ns;		/* CLOCK_BOOTTIME */
	struct nn_ip local;
	struct nn_ip remote;
	struct nn_ip orig;	/* zero: none */
	__u16 local_port;
	__u16 remote_port;
	__u16 orig_port;
	__u8 family;		/* 2 or 10, of the addresses in use */
	__u8 dir;
	__u32 pid;
	__u8 state;
	__u8 flags;
	__u8 reason;
	__u8 via;
	char comm[16];
};

/* ring buffer record, closed map value and iterator record */
struct nn_event {
	struct nn_conn conn;
	__u64 end_ns;		/* CLOCK_BOOTTIME of this record */
	__u64 bytes_sent;	/* payload the app wrote */
	__u64 bytes_acked;	/* payload the peer acknowledged */
	__u64 bytes_received;	/* payload that arrived in order */
	__u32 srtt_us;		/* 0: no sample */
	__u32 rtt_min_us;	/* 0xffffffff: no sample */
	__u32 retransmits;
	__u32 lost;
	__u32 segs_out;
	__u32 segs_in;
	__u32 cwnd;
	__u8 kind;
	__u8 old_state;		/* state before the last transition */
	__u16 err;		/* errno of the socket, positive, 0: none */
	__u32 pod_id;
	__u32 pad;
};

struct nn_agg_key {
	__u32 pod_id;
	__u8 dir;
	__u8 reason;
	__u8 via;
	__u8 pad;
};

struct nn_agg {
	__u64 opened;
	__u64 closed;
	__u64 failed;		/* never established, or refused by policy of the capture */
	__u64 bytes_sent;
	__u64 bytes_received;
	__u64 retransmits;
	__u64 segs_out;
};

/* nn_query.asker: whose socket it is asked for */
#define NN_ASK_ANYBODY 0u
#define NN_ASK_PROXY 1u		/* one of the agent's cgroup */
#define NN_ASK_NODE 2u		/* inbound: one of the pod's own node */

/* input of the nn_explain program, behind 16 bytes of packet head */
struct nn_query {
	__u64 netns;
	struct nn_ip local;
	struct nn_ip remote;
	__u16 local_port;
	__u16 remote_port;
	__u8 dir;
	__u8 protocol;		/* IPPROTO_* */
	__u8 asker;		/* NN_ASK_* */
	__u8 pad;
};

#endif
