// The file descriptors that were closed when the process started: bit 1 is standard
// output, bit 2 standard error.
int closed_at_start(void);
