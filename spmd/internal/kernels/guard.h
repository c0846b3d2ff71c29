// What a kernel does on a thread while it may be stopped.
#ifndef EMULATE_GUARD_H
#define EMULATE_GUARD_H

struct guard {
	void (*stop)(void); // goes on in its place, and does not return
	void *pc, *address; // of the access that has failed; pc is NULL where none has
};

// guard_install has accesses that fail stop the kernel of their thread. All others go where they went before.
void guard_install(void);

// guard_set says what the calling thread runs; NULL is no kernel.
void guard_set(struct guard *g);

#endif
