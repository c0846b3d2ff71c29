#define _GNU_SOURCE
#include "guard.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

static struct sigaction before[2];
static const int signals[2] = {SIGSEGV, SIGBUS};
static _Thread_local struct guard *current;

// enter has the thread go on in stop when the handler returns, on the stack that it is on.
static void enter(ucontext_t *c, struct guard *g) {
#if defined(__x86_64__)
	g->pc = (void *)c->uc_mcontext.gregs[REG_RIP];
	c->uc_mcontext.gregs[REG_RSP] = ((c->uc_mcontext.gregs[REG_RSP] - 128) & ~(greg_t)15) - 8; // as behind a call
	c->uc_mcontext.gregs[REG_RIP] = (greg_t)g->stop;
#elif defined(__aarch64__)
	g->pc = (void *)c->uc_mcontext.pc;
	c->uc_mcontext.sp &= ~(uint64_t)15;
	c->uc_mcontext.pc = (uint64_t)g->stop;
#else
	abort();
#endif
}

static void caught(int signal, siginfo_t *info, void *context) {
	struct guard *g = current;
	if (g != NULL) {
		current = NULL;
		g->address = info->si_addr;
		enter(context, g);
		return;
	}
	struct sigaction *next = &before[signal == signals[0] ? 0 : 1];
	if (next->sa_flags & SA_SIGINFO) {
		next->sa_sigaction(signal, info, context);
	} else if (next->sa_handler != SIG_DFL && next->sa_handler != SIG_IGN) {
		next->sa_handler(signal);
	} else { // comes again
		sigaction(signal, next, NULL);
	}
}

static void install(void) {
	struct sigaction a = {.sa_sigaction = caught, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
	sigfillset(&a.sa_mask);
	for (int i = 0; i < 2; i++) sigaction(signals[i], &a, &before[i]);
}

void guard_install(void) {
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, install);
}

void guard_set(struct guard *g) { current = g; }
