// Package collective measures collectives on the ranks of a job. It lists the cases, times each,
// and checks its results before and after.
package collective
