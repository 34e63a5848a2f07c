/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client HOST PORT: connects and prints what getpeername and getsockname say, then the first line
 * the other side sends. Linked statically: what it sees comes from the kernel.
 */
#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void show(const char *what, const struct sockaddr_storage *name)
{
	const struct sockaddr_in6 *v6 = (const void *)name;
	const struct sockaddr_in *v4 = (const void *)name;
	char host[INET6_ADDRSTRLEN];
	int is_v6 = name->ss_family == AF_INET6;

	inet_ntop(name->ss_family, is_v6 ? (const void *)&v6->sin6_addr : &v4->sin_addr, host,
		  sizeof(host));
	printf("%s %s %d\n", what, host, ntohs(is_v6 ? v6->sin6_port : v4->sin_port));
}

int main(int argc, char **argv)
{
	struct sockaddr_storage name = {};
	struct sockaddr_in6 *v6 = (void *)&name;
	struct sockaddr_in *v4 = (void *)&name;
	socklen_t length = sizeof(name);
	char byte;
	int fd;

	if (argc != 3)
		return 2;
	if (inet_pton(AF_INET6, argv[1], &v6->sin6_addr) == 1) {
		name.ss_family = AF_INET6;
		v6->sin6_port = htons(atoi(argv[2]));
	} else if (inet_pton(AF_INET, argv[1], &v4->sin_addr) == 1) {
		name.ss_family = AF_INET;
		v4->sin_port = htons(atoi(argv[2]));
	} else {
		return 2;
	}
	fd = socket(name.ss_family, SOCK_STREAM, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&name, length)) {
		perror("connect");
		return 1;
	}
	if (getpeername(fd, (struct sockaddr *)&name, &length)) {
		perror("getpeername");
		return 1;
	}
	show("peer", &name);
	length = sizeof(name);
	if (getsockname(fd, (struct sockaddr *)&name, &length)) {
		perror("getsockname");
		return 1;
	}
	show("local", &name);
	while (read(fd, &byte, 1) == 1) {
		putchar(byte);
		if (byte == '\n')
			break;
	}
	return 0;
}
