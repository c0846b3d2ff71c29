// The signals that were ignored when the process started: bit N is signal N.
unsigned long long ignored_at_start(void);
