/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections in one process, by epoll: the modes open, up, down, trips and idle of load.c.
 *
 * Except in "open" the server greets every connection with a byte, and the client begins when all
 * have been greeted: whatever stands between has then done its handshakes and dials.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "load.h"

#define EVENTS 256
#define AT_ONCE 64	/* connections being opened at a time */
#define TRAILER sizeof(uint64_t)

enum kind { OPEN, UP, DOWN, TRIPS, IDLE, NONE };

static const char *const names[] = {"open", "up", "down", "trips", "idle"};

struct conn {
	int fd;
	int ending;		/* the server: only the count is left to send */
	uint64_t since;		/* when what is under way began */
	uint64_t connected;	/* how long connect took */
	uint64_t bytes;		/* through this connection, or of the message under way */
	char tail[TRAILER];	/* the last bytes that came */
};

static enum kind kind;
static int epoll;
static struct epoll_event events[EVENTS];
/* bytes arrive here; what is written comes from `buffer`, which stays as it is */
static char arrived[BUFFER];

static enum kind kind_of(const char *name)
{
	for (int i = 0; i < NONE; i++)
		if (!strcmp(name, names[i]))
			return i;
	return NONE;
}

int is_many(const char *name)
{
	return kind_of(name) != NONE;
}

static void begin(void)
{
	kind = kind_of(mode);
	epoll = epoll_create1(0);
	if (epoll < 0)
		fail("epoll");
}

static void allow_files(int count)
{
	struct rlimit files = {count + 64, count + 64};

	getrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_cur >= (rlim_t)count + 64)
		return;
	files.rlim_cur = count + 64;
	if (files.rlim_max < files.rlim_cur)
		files.rlim_max = files.rlim_cur;
	if (setrlimit(RLIMIT_NOFILE, &files))
		fail("%d files", count);
}

static void watch(int operation, int fd, uint32_t mask, struct conn *c)
{
	struct epoll_event event = {.events = mask, .data.ptr = c};

	if (epoll_ctl(epoll, operation, fd, &event))
		fail("epoll_ctl");
}

static void non_blocking(int fd)
{
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) < 0)
		fail("O_NONBLOCK");
}

/* Events, or a failure when nothing happens for too long. */
static int wait_events(void)
{
	int n;

	do {
		n = epoll_wait(epoll, events, EVENTS, ANSWER_SECONDS * 1000);
	} while (n < 0 && errno == EINTR);
	if (n < 0)
		fail("epoll_wait");
	errno = ETIMEDOUT;
	if (!n)
		fail("%s: nothing happens", mode);
	return n;
}

/* server */

static void accept_one(int listener)
{
	int fd = accept4(listener, 0, 0, SOCK_NONBLOCK);
	struct conn *c;

	if (fd < 0)
		return;
	c = calloc(1, sizeof(*c));
	if (!c)
		fail("memory");
	c->fd = fd;
	no_delay(fd);
	if (kind != OPEN && write(fd, "h", 1) != 1)
		perror("load: server: greeting");
	watch(EPOLL_CTL_ADD, fd, EPOLLIN, c);
}

static void drop(struct conn *c)
{
	close(c->fd);
	free(c);
}

static void serve_up(struct conn *c)
{
	ssize_t n = read(c->fd, arrived, BUFFER);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n > 0) {
		c->bytes += n;
		return;
	}
	if (write(c->fd, &c->bytes, TRAILER) < 0)
		perror("load: server: count");
	drop(c);
}

static void serve_down(struct conn *c, uint32_t mask)
{
	char go;
	ssize_t n;

	if (mask & EPOLLIN) {
		n = read(c->fd, &go, 1);
		if (n > 0) {
			watch(EPOLL_CTL_MOD, c->fd, EPOLLIN | EPOLLOUT, c);
			return;
		}
		/* enough; the count goes out as one piece, blocking, since nobody else waits now */
		fcntl(c->fd, F_SETFL, 0);
		if (write(c->fd, &c->bytes, TRAILER) < 0)
			perror("load: server: count");
		drop(c);
		return;
	}
	n = write(c->fd, buffer, size);
	if (n > 0)
		c->bytes += n;
	else if (n < 0 && errno != EAGAIN)
		drop(c);
}

static void serve_echo(struct conn *c)
{
	ssize_t n = read(c->fd, arrived, BUFFER);

	if (n < 0 && errno == EAGAIN)
		return;
	if (n <= 0 || write(c->fd, arrived, n) != n) {
		drop(c);
		return;
	}
	c->bytes += n;
	if (kind == OPEN && c->bytes >= (uint64_t)size)
		drop(c);	/* who closes first keeps TIME_WAIT; here that takes nobody's port */
}

void serve_many(int ready)
{
	int listener;

	begin();
	allow_files(connections);
	listener = listening();
	non_blocking(listener);
	watch(EPOLL_CTL_ADD, listener, EPOLLIN, 0);
	if (write(ready, "r", 1) != 1)
		fail("server ready");
	for (;;) {
		int n = epoll_wait(epoll, events, EVENTS, -1);

		for (int i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;

			if (!c)
				accept_one(listener);
			else if (kind == UP)
				serve_up(c);
			else if (kind == DOWN)
				serve_down(c, events[i].events);
			else
				serve_echo(c);
		}
	}
}

/* client */

static struct conn *conns(void)
{
	struct conn *all = calloc(connections, sizeof(*all));

	if (!all)
		fail("memory");
	return all;
}

/* Opens connection after connection, some at a time, until each has been greeted. */
static struct conn *greeted(void)
{
	struct conn *all = conns();
	char hello;

	for (int opened = 0, met = 0; met < connections;) {
		for (; opened < connections && opened - met < AT_ONCE; opened++) {
			struct conn *c = all + opened;

			c->fd = dial();
			connect_to(c->fd);
			no_delay(c->fd);
			non_blocking(c->fd);
			watch(EPOLL_CTL_ADD, c->fd, EPOLLIN, c);
		}
		for (int n = wait_events(), i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;

			errno = ECONNRESET;
			if (read(c->fd, &hello, 1) != 1)
				fail("greeting of connection %d", (int)(c - all) + 1);
			met++;
		}
	}
	return all;
}

static void start_open(struct conn *c)
{
	c->since = now();
	c->fd = dial();
	connect_to(c->fd);
	c->connected = now() - c->since;
	c->bytes = 0;
	no_delay(c->fd);
	if (write(c->fd, buffer, size) != size)
		fail("open: write");
	watch(EPOLL_CTL_ADD, c->fd, EPOLLIN, c);
}

static void run_open(struct results *r)
{
	struct conn *all = conns();
	uint64_t end = 0;
	int open = 0;

	for (; open < connections; open++)
		start_open(all + open);
	while (open) {
		for (int n = wait_events(), i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;
			ssize_t got = read(c->fd, arrived, BUFFER);
			uint64_t t = now();

			if (got < 0)
				fail("open: read");
			c->bytes += got;
			if (got) {
				if (c->bytes >= (uint64_t)size) {
					if (end && t < end)
						keep(r, c->connected, t - c->since);
					else if (++r->extra == WARM_UP) {
						r->started = t;
						end = t + length_ns;
						r->ended = end;
					}
				}
				continue;
			}
			errno = ECONNRESET;
			if (c->bytes != (uint64_t)size)
				fail("open: closed after %d bytes", (int)c->bytes);
			close(c->fd);
			open--;
			if (!end || t < end) {
				start_open(c);
				open++;
			}
		}
	}
}

static void finish_up(struct conn *c)
{
	shutdown(c->fd, SHUT_WR);
	watch(EPOLL_CTL_MOD, c->fd, EPOLLIN, c);
}

static void check_count(const char *tail, uint64_t bytes)
{
	uint64_t said;

	memcpy(&said, tail, TRAILER);
	errno = EIO;
	if (said != bytes)
		fail("%s: %llu bytes here, %llu there", mode, (unsigned long long)bytes,
		     (unsigned long long)said);
}

static void run_up(struct results *r)
{
	struct conn *all = greeted();
	uint64_t end;
	int open = connections;

	r->started = now();
	end = r->started + length_ns;
	for (int i = 0; i < connections; i++)
		watch(EPOLL_CTL_MOD, all[i].fd, EPOLLOUT, all + i);
	while (open) {
		for (int n = wait_events(), i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;
			ssize_t done;

			if (events[i].events & EPOLLIN) {
				if (read_all(c->fd, arrived, TRAILER) != 1)
					fail("up: count");
				check_count(arrived, c->bytes);
				r->bytes += c->bytes;
				r->count++;
				close(c->fd);
				open--;
			} else if (now() >= end) {
				finish_up(c);
			} else {
				done = write(c->fd, buffer, size);
				if (done < 0 && errno != EAGAIN)
					fail("up: write");
				if (done > 0)
					c->bytes += done;
			}
		}
	}
	r->ended = now();
}

/* Keeps the last bytes of what has come so far. */
static void keep_tail(struct conn *c, const char *bytes, size_t n)
{
	if (n >= TRAILER) {
		memcpy(c->tail, bytes + n - TRAILER, TRAILER);
		return;
	}
	memmove(c->tail, c->tail + n, TRAILER - n);
	memcpy(c->tail + TRAILER - n, bytes, n);
}

static void run_down(struct results *r)
{
	struct conn *all = greeted();
	uint64_t end;
	int open = connections, told = 0;

	r->started = now();
	end = r->started + length_ns;
	for (int i = 0; i < connections; i++)
		if (write(all[i].fd, "g", 1) != 1)
			fail("down: write");
	while (open) {
		for (int n = wait_events(), i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;
			ssize_t got = read(c->fd, arrived, BUFFER);

			if (got < 0 && errno == EAGAIN)
				continue;
			if (got < 0)
				fail("down: read");
			if (got) {
				c->bytes += got;
				keep_tail(c, arrived, got);
				continue;
			}
			check_count(c->tail, c->bytes - TRAILER);
			r->bytes += c->bytes;
			r->count++;
			close(c->fd);
			open--;
		}
		if (!told && now() >= end) {
			told = 1;
			for (int i = 0; i < connections; i++)
				shutdown(all[i].fd, SHUT_WR);
		}
	}
	r->ended = now();
}

static void send_trip(struct conn *c)
{
	c->bytes = 0;
	c->since = now();
	if (write(c->fd, buffer, size) != size)
		fail("trips: write");
}

static void run_trips(struct results *r)
{
	struct conn *all = greeted();
	uint64_t end = 0, before = WARM_UP > 2 * connections ? WARM_UP : 2 * connections;
	int busy = connections;

	for (int i = 0; i < connections; i++)
		send_trip(all + i);
	while (busy) {
		for (int n = wait_events(), i = 0; i < n; i++) {
			struct conn *c = events[i].data.ptr;
			ssize_t got = read(c->fd, arrived, BUFFER);
			uint64_t t = now();

			errno = got ? errno : ECONNRESET;
			if (got <= 0)
				fail("trips: read");
			c->bytes += got;
			if (c->bytes < (uint64_t)size)
				continue;
			if (end && t < end) {
				keep(r, t - c->since, 0);
			} else if (++r->extra == before) {
				r->started = t;
				end = t + length_ns;
				r->ended = end;
			}
			if (end && t >= end)
				busy--;
			else
				send_trip(c);
		}
	}
}

void run_many(struct results *r)
{
	begin();
	allow_files(connections);
	if (kind == OPEN)
		run_open(r);
	else if (kind == UP)
		run_up(r);
	else if (kind == DOWN)
		run_down(r);
	else
		run_trips(r);
}

static void say_count(int count)
{
	printf("{\"count\": %d}\n", count);
	fflush(stdout);
}

void idle(void)
{
	struct conn *all;
	char line;
	int alive = 0;

	begin();
	enter(&client_side);
	allow_files(connections);
	all = greeted();
	say_count(connections);
	if (read(0, &line, 1) != 1)
		return;
	for (int from = 0; from < connections; from += AT_ONCE) {
		int to = from + AT_ONCE < connections ? from + AT_ONCE : connections;

		for (int i = from; i < to; i++)
			if (write(all[i].fd, "x", 1) != 1)
				fail("idle: connection %d", i + 1);
		for (int left = to - from; left;) {
			int n = wait_events();

			for (int i = 0; i < n; i++) {
				struct conn *c = events[i].data.ptr;

				errno = ECONNRESET;
				if (read(c->fd, &line, 1) != 1 || line != 'x')
					fail("idle: connection %d", (int)(c - all) + 1);
				alive++;
				left--;
			}
		}
	}
	say_count(alive);
}
