/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* For BCC's stack and ring buffer macros. n > 1. */
#ifndef NN_LINUX_LOG2_H
#define NN_LINUX_LOG2_H

#define roundup_pow_of_two(n) (1UL << (64 - __builtin_clzl((n) - 1)))

#endif
