#include <signal.h>
#include <stddef.h>

#include "signals.h"

static unsigned long long ignored;

// look runs before Go's runtime, which handles most signals whatever they were before.
__attribute__((constructor)) static void look(void)
{
	for (int s = 1; s < 32; s++) {
		struct sigaction was;
		if (sigaction(s, NULL, &was) == 0 && !(was.sa_flags & SA_SIGINFO) && was.sa_handler == SIG_IGN)
			ignored |= 1ULL << s;
	}
}

unsigned long long ignored_at_start(void)
{
	return ignored;
}
