/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the load generator share; load.c tells what it does and documents its keys. */
#ifndef NN_BENCH_LOAD_H
#define NN_BENCH_LOAD_H

#include <stdint.h>
#include <sys/socket.h>

#define MAX_SAMPLES (1 << 20)	/* a client; later ones are counted but not kept */
#define BUFFER (1 << 20)
#define WARM_UP 200
#define ANSWER_SECONDS 10	/* no answer for so long is a failure, not a slow sample */

struct side {
	const char *netns;
	const char *cgroup;
	int cpu;
	int batch;
};

struct endpoint {
	struct sockaddr_storage address;
	socklen_t length;
};

struct results {
	uint64_t started, ended, count, bytes, kept;
	uint64_t extra;		/* what only warmed up, or came too late to be measured */
	uint32_t connect_ns[MAX_SAMPLES];
	uint32_t reply_ns[MAX_SAMPLES];
};

/* what was asked for */
extern const char *mode;
extern struct side server_side, client_side;
extern struct endpoint listen_at, dial_to;
extern uint64_t length_ns;
extern int size, connections;
extern char buffer[BUFFER];

/* load.c */
void fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));
uint64_t now(void);
void enter(const struct side *s);
void no_delay(int fd);
int read_all(int fd, char *to, size_t length);
int listening(void);
int dial(void);
void connect_to(int fd);
void keep(struct results *r, uint64_t connected, uint64_t replied);

/* load_many.c: the modes with many connections in one process, by epoll */
int is_many(const char *name);
void serve_many(int ready) __attribute__((noreturn));
void run_many(struct results *r);
void idle(void);

#endif
