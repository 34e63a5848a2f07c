/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Empty: BCC brings its own bpf.h, which includes this name. */
