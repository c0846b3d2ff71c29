// Package collective measures collectives on the ranks of a job: which cases there are, and the
// time of each, with its results checked before and after.
package collective
