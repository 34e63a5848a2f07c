/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The load of the benchmarks: one TCP server and one or more clients, each pinned to a CPU, in a
 * network namespace and a cgroup of its own. Compiled and run by bench/_load.py.
 *
 *   load MODE KEY=VALUE...
 *
 * MODE  conn  connect and close by RST, again and again (exchange=1: a byte there and back first)
 *       rtt   size bytes there and back on one connection
 *       bulk  writes of size bytes on one connection, then the server says how many arrived
 *       hold  count connections, all open at once until standard input ends
 *       and, with count connections in one client process and one server process, by epoll:
 *       open  connect, size bytes there and back, the server closes, again and again
 *       up    writes of size bytes on each, then the server says how many arrived
 *       down  the same in the other direction
 *       trips size bytes there and back, again and again on each
 *       idle  all are opened, then nothing; a line on standard input: a byte there and back on each
 * KEYS  listen=IP:PORT    where the server listens (without it there is no server here)
 *       dial=IP:PORT      where the clients connect to
 *       server_ns=PATH client_ns=PATH          network namespaces
 *       server_cgroup=DIR client_cgroup=DIR    cgroup v2 directories
 *       server_cpu=N client_cpu=N              CPUs
 *       ms=N              how long the measured part lasts
 *       clients=N         client processes (conn only)
 *       size=N            bytes of a message (rtt, trips, open) or of a write (bulk, up, down)
 *       exchange=0|1      conn: a byte there and back before the close
 *       batch=0|1         the server never interrupts a client on its CPU (SCHED_BATCH)
 *       count=N           connections (hold, open, up, down, trips, idle)
 *
 * Prints one line of JSON: count, total (with those that only warm up), elapsed_ns, bytes,
 * client_cpu_ns, server_cpu_ns, client_switches (how often the clients lost their CPU), and p50_ns,
 * p99_ns, max_ns of connect (conn, open) or of the round trip (rtt, trips); for open, and conn with
 * exchange, also reply_p50_ns, ..., from before connect until the answer. hold and idle print
 * {"count": N} when all are open, idle another {"count": N} of those that have answered. A failure
 * is one line on stderr and exit 1.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "load.h"

#define MAX_CLIENTS 64

const char *mode;
struct side server_side = {.cpu = -1}, client_side = {.cpu = -1};
struct endpoint listen_at, dial_to;
uint64_t length_ns = 500000000;
int size = 64, connections = 1;
char buffer[BUFFER];
static int clients = 1, exchange;

void fail(const char *format, ...)
{
	int error = errno;
	va_list args;

	va_start(args, format);
	fprintf(stderr, "load: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, ": %s\n", strerror(error));
	va_end(args);
	exit(1);
}

uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static struct endpoint parse_endpoint(const char *text)
{
	struct endpoint e = {0};
	char host[64];
	const char *colon = strrchr(text, ':');
	size_t length;

	errno = EINVAL;
	if (!colon || colon == text || (length = colon - text) >= sizeof(host))
		fail("endpoint %s", text);
	if (text[0] == '[') {
		struct sockaddr_in6 *a = (void *)&e.address;

		snprintf(host, sizeof(host), "%.*s", (int)length - 2, text + 1);
		a->sin6_family = AF_INET6;
		a->sin6_port = htons(atoi(colon + 1));
		e.length = sizeof(*a);
		if (inet_pton(AF_INET6, host, &a->sin6_addr) != 1)
			fail("endpoint %s", text);
	} else {
		struct sockaddr_in *a = (void *)&e.address;

		snprintf(host, sizeof(host), "%.*s", (int)length, text);
		a->sin_family = AF_INET;
		a->sin_port = htons(atoi(colon + 1));
		e.length = sizeof(*a);
		if (inet_pton(AF_INET, host, &a->sin_addr) != 1)
			fail("endpoint %s", text);
	}
	return e;
}

void enter(const struct side *s)
{
	struct sched_param no_priority = {0};
	cpu_set_t set;

	/* the cgroup first: a socket belongs to the one its maker was in */
	if (s->cgroup) {
		char path[512];
		int fd;

		snprintf(path, sizeof(path), "%s/cgroup.procs", s->cgroup);
		fd = open(path, O_WRONLY);
		if (fd < 0 || dprintf(fd, "%d", getpid()) < 0)
			fail("%s", path);
		close(fd);
	}
	if (s->netns) {
		int fd = open(s->netns, O_RDONLY);

		if (fd < 0 || setns(fd, CLONE_NEWNET))
			fail("%s", s->netns);
		close(fd);
	}
	if (s->cpu >= 0) {
		CPU_ZERO(&set);
		CPU_SET(s->cpu, &set);
		if (sched_setaffinity(0, sizeof(set), &set))
			fail("cpu %d", s->cpu);
	}
	if (s->batch && sched_setscheduler(0, SCHED_BATCH, &no_priority))
		fail("SCHED_BATCH");
}

void no_delay(int fd)
{
	int one = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* 1: the whole message; 0: the peer has closed. */
int read_all(int fd, char *to, size_t length)
{
	while (length) {
		ssize_t n = read(fd, to, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (!n) {
			errno = ECONNRESET;	/* for who did not expect it */
			return 0;
		}
		to += n;
		length -= n;
	}
	return 1;
}

/* server */

static void serve_connection(int fd)
{
	uint64_t total = 0;
	ssize_t n;

	no_delay(fd);
	if (!strcmp(mode, "rtt")) {
		while (read_all(fd, buffer, size) == 1)
			if (write(fd, buffer, size) != size)
				break;
	} else {
		while ((n = read(fd, buffer, BUFFER)) > 0)
			total += n;
		if (write(fd, &total, sizeof(total)) < 0)
			perror("load: server");
	}
}

int listening(void)
{
	int one = 1, fd = socket(listen_at.address.ss_family, SOCK_STREAM, 0);

	if (fd < 0)
		fail("server socket");
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (void *)&listen_at.address, listen_at.length) || listen(fd, 4096))
		fail("server listen");
	return fd;
}

/* The child ends with the parent, also with one that died before it could say so. */
static void end_with(pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
}

static void serve(int ready)
{
	int fd;

	enter(&server_side);
	if (is_many(mode))
		serve_many(ready);
	fd = listening();
	if (write(ready, "r", 1) != 1)
		fail("server ready");
	for (;;) {
		int s = accept(fd, 0, 0);

		if (s < 0)
			continue;
		if (strcmp(mode, "conn"))
			serve_connection(s);
		else if (exchange && read(s, buffer, 1) == 1 && write(s, buffer, 1) < 0)
			continue;
		close(s);
	}
}

/* clients */

int dial(void)
{
	struct timeval limit = {.tv_sec = ANSWER_SECONDS};
	int fd = socket(dial_to.address.ss_family, SOCK_STREAM, 0);

	if (fd < 0)
		fail("client socket");
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	return fd;
}

void connect_to(int fd)
{
	if (connect(fd, (void *)&dial_to.address, dial_to.length))
		fail("connect");
}

void keep(struct results *r, uint64_t connected, uint64_t replied)
{
	if (r->kept < MAX_SAMPLES) {
		r->connect_ns[r->kept] = connected;
		r->reply_ns[r->kept++] = replied;
	}
	r->count++;
}

static void one_connection(struct results *r)
{
	/* reset on close: no TIME_WAIT, so the ports do not run out */
	struct linger reset = {1, 0};
	int fd = dial();
	uint64_t before = now(), connected, replied = 0;

	connect_to(fd);
	connected = now() - before;
	if (exchange) {
		if (write(fd, "x", 1) != 1 || read(fd, buffer, 1) != 1)
			fail("exchange");
		replied = now() - before;
	}
	setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	close(fd);
	if (r)
		keep(r, connected, replied);
}

static void run_conn(struct results *r)
{
	uint64_t end;

	r->extra = WARM_UP;
	for (int i = 0; i < WARM_UP; i++)
		one_connection(0);
	r->started = now();
	end = r->started + length_ns;
	while (now() < end)
		one_connection(r);
	r->ended = now();
}

static void run_rtt(struct results *r)
{
	int fd = dial();
	uint64_t before, after = 0, end = 0;

	connect_to(fd);
	no_delay(fd);
	r->extra = WARM_UP;
	for (int i = 0; !end || after < end; i++) {
		before = now();
		if (write(fd, buffer, size) != size || read_all(fd, buffer, size) != 1)
			fail("round trip");
		after = now();
		if (i == WARM_UP) {
			r->started = after;
			end = after + length_ns;
		} else if (end) {
			keep(r, after - before, 0);
		}
	}
	r->ended = after;
}

static void run_bulk(struct results *r)
{
	uint64_t end, arrived = 0;
	int fd = dial();

	connect_to(fd);
	r->started = now();
	end = r->started + length_ns;
	while (now() < end) {
		ssize_t n = write(fd, buffer, size);

		if (n < 0)
			fail("bulk");
		r->bytes += n;
	}
	shutdown(fd, SHUT_WR);
	if (read_all(fd, (char *)&arrived, sizeof(arrived)) != 1)
		fail("bulk answer");
	r->ended = now();
	errno = EIO;
	if (arrived != r->bytes)
		fail("%llu of %llu bytes arrived", (unsigned long long)arrived,
		     (unsigned long long)r->bytes);
	r->count = 1;
}

static void run_client(struct results *r)
{
	enter(&client_side);
	if (is_many(mode))
		run_many(r);
	else if (!strcmp(mode, "conn"))
		run_conn(r);
	else if (!strcmp(mode, "rtt"))
		run_rtt(r);
	else
		run_bulk(r);
}

/* Both ends are this process's; the listener is on dial's address. */
static void hold(void)
{
	struct rlimit files = {2 * connections + 64, 2 * connections + 64};
	int one = 1, fd;

	enter(&client_side);
	if (setrlimit(RLIMIT_NOFILE, &files))
		fail("%d files", 2 * connections);
	fd = socket(dial_to.address.ss_family, SOCK_STREAM, 0);
	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, (void *)&dial_to.address, dial_to.length) || listen(fd, 4096))
		fail("hold listen");
	for (int i = 0; i < connections; i++) {
		connect_to(dial());
		if (accept(fd, 0, 0) < 0)
			fail("hold accept");
	}
	printf("{\"count\": %d}\n", connections);
	fflush(stdout);
	while (read(0, buffer, 1) > 0)
		;
}

/* report */

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void print_percentiles(const char *prefix, uint32_t *samples, uint64_t n)
{
	qsort(samples, n, sizeof(*samples), by_size);
	printf(", \"%sp50_ns\": %u, \"%sp99_ns\": %u, \"%smax_ns\": %u", prefix, samples[n / 2],
	       prefix, samples[n * 99 / 100], prefix, samples[n - 1]);
}

static void report(struct results *all, uint64_t client_cpu, uint64_t server_cpu,
		   uint64_t switches)
{
	uint64_t started = UINT64_MAX, ended = 0, count = 0, extra = 0, bytes = 0, kept = 0, at = 0;
	uint32_t *connect_ns, *reply_ns;

	for (int i = 0; i < clients; i++) {
		struct results *r = all + i;

		started = r->started < started ? r->started : started;
		ended = r->ended > ended ? r->ended : ended;
		count += r->count;
		extra += r->extra;
		bytes += r->bytes;
		kept += r->kept;
	}
	printf("{\"count\": %llu, \"total\": %llu, \"elapsed_ns\": %llu, \"bytes\": %llu, "
	       "\"client_cpu_ns\": %llu, \"server_cpu_ns\": %llu, \"client_switches\": %llu",
	       (unsigned long long)count, (unsigned long long)(count + extra),
	       (unsigned long long)(ended - started),
	       (unsigned long long)bytes, (unsigned long long)client_cpu,
	       (unsigned long long)server_cpu, (unsigned long long)switches);
	if (kept) {
		connect_ns = calloc(kept, sizeof(*connect_ns));
		reply_ns = calloc(kept, sizeof(*reply_ns));
		if (!connect_ns || !reply_ns)
			fail("report");
		for (int i = 0; i < clients; i++) {
			memcpy(connect_ns + at, all[i].connect_ns, all[i].kept * 4);
			memcpy(reply_ns + at, all[i].reply_ns, all[i].kept * 4);
			at += all[i].kept;
		}
		print_percentiles("", connect_ns, kept);
		if (exchange || !strcmp(mode, "open"))
			print_percentiles("reply_", reply_ns, kept);
	}
	printf("}\n");
}

static uint64_t cpu_ns(const struct rusage *u)
{
	return (u->ru_utime.tv_sec + u->ru_stime.tv_sec) * 1000000000ull +
	       (u->ru_utime.tv_usec + u->ru_stime.tv_usec) * 1000ull;
}

static void parse(int argc, char **argv)
{
	errno = EINVAL;
	if (argc < 2)
		fail("usage: load conn|rtt|bulk|hold|open|up|down|trips|idle KEY=VALUE...");
	mode = argv[1];
	if (strcmp(mode, "conn") && strcmp(mode, "rtt") && strcmp(mode, "bulk") &&
	    strcmp(mode, "hold") && !is_many(mode))
		fail("mode %s", mode);
	for (int i = 2; i < argc; i++) {
		char *value = strchr(argv[i], '=');

		errno = EINVAL;
		if (!value)
			fail("argument %s", argv[i]);
		*value++ = 0;
#define KEY(name) (!strcmp(argv[i], name))
		if (KEY("listen"))
			listen_at = parse_endpoint(value);
		else if (KEY("dial"))
			dial_to = parse_endpoint(value);
		else if (KEY("server_ns"))
			server_side.netns = value;
		else if (KEY("client_ns"))
			client_side.netns = value;
		else if (KEY("server_cgroup"))
			server_side.cgroup = value;
		else if (KEY("client_cgroup"))
			client_side.cgroup = value;
		else if (KEY("server_cpu"))
			server_side.cpu = atoi(value);
		else if (KEY("client_cpu"))
			client_side.cpu = atoi(value);
		else if (KEY("ms"))
			length_ns = strtoull(value, 0, 10) * 1000000;
		else if (KEY("clients"))
			clients = atoi(value);
		else if (KEY("size"))
			size = atoi(value);
		else if (KEY("exchange"))
			exchange = atoi(value);
		else if (KEY("batch"))
			server_side.batch = atoi(value);
		else if (KEY("count"))
			connections = atoi(value);
		else
			fail("unknown key %s", argv[i]);
#undef KEY
	}
	errno = EINVAL;
	if (!dial_to.length)
		fail("dial is missing");
	if (clients < 1 || clients > MAX_CLIENTS || (clients > 1 && strcmp(mode, "conn")))
		fail("clients %d", clients);
	if (size < 1 || size > BUFFER)
		fail("size %d", size);
	if (connections < 1)
		fail("count %d", connections);
}

int main(int argc, char **argv)
{
	uint64_t client_cpu = 0, server_cpu = 0, switches = 0;
	pid_t parent = getpid(), server = 0, pids[MAX_CLIENTS];
	struct results *all;
	struct rusage usage;
	int ready[2], status, failed = 0;
	char byte;

	parse(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	if (!strcmp(mode, "hold")) {
		hold();
		return 0;
	}
	all = mmap(0, clients * sizeof(*all), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (all == MAP_FAILED || pipe(ready))
		fail("memory");
	if (listen_at.length) {
		server = fork();
		if (!server) {
			end_with(parent);
			close(ready[0]);
			serve(ready[1]);
		}
		close(ready[1]);
		errno = ECHILD;
		if (server < 0 || read(ready[0], &byte, 1) != 1)
			fail("server");
	}
	if (!strcmp(mode, "idle")) {
		idle();
		if (server)
			kill(server, SIGKILL);
		return 0;
	}
	for (int i = 0; i < clients; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			end_with(parent);
			run_client(all + i);
			exit(0);
		}
	}
	for (int i = 0; i < clients; i++) {
		if (wait4(pids[i], &status, 0, &usage) != pids[i] || status)
			failed = 1;
		client_cpu += cpu_ns(&usage);
		switches += usage.ru_nvcsw + usage.ru_nivcsw;
	}
	if (server) {
		kill(server, SIGKILL);
		wait4(server, 0, 0, &usage);
		server_cpu = cpu_ns(&usage);
	}
	if (failed)
		return 1;
	report(all, client_cpu, server_cpu, switches);
	return 0;
}
