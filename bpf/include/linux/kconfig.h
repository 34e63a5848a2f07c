/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/*
 * The private header tree: all that BCC asks of kernel headers, so that compiling needs no header
 * package. BCC_KERNEL_SOURCE points at the directory above this tree. No struct of the kernel is
 * declared here on purpose: its layout would be that of the headers, not of the running kernel.
 */
#define CONFIG_BPF_SYSCALL 1	/* BCC's helpers.h refuses to go on without it */
