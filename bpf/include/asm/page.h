/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* BCC counts a ring buffer in pages; the loader passes the page size of this machine. */
#ifndef NN_PAGE_SIZE
#define NN_PAGE_SIZE 4096
#endif
#define PAGE_SIZE NN_PAGE_SIZE
