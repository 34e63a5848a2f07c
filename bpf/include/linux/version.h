/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Only gates declarations in BCC's helpers.h; says nothing about the running kernel. */
#ifndef NN_LINUX_VERSION_H
#define NN_LINUX_VERSION_H

#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 10, 0)

#endif
