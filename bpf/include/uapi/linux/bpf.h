/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Must exist and must be empty: BCC brings its own bpf.h under another name. */
