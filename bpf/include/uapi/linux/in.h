/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Must exist; nothing of it is used. */
