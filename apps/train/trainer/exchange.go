package trainer

import (
	"lockstep/apps/train/gpt"
)

// exchange sums gradients over the ranks that share each batch. If these ranks also share the state
// of the training, it brings the weights that passes need.
//
// Its methods only enqueue. Every rank calls them in the same order.
type exchange interface {
	// learn enqueues the passes of a micro-step, which call ready when a section's gradients are
	// complete. If it sums gradients over the ranks, the train stream waits for the sums.
	learn(k microKind, passes func(ready func(section int) error) error) error
	// learnAll is learn for a pipelined step of so many micro-batches. It adds to h what learns.
	learnAll(micro int, h gpt.StepHooks, passes func(h gpt.StepHooks) error) error
	// around enqueues a pass that learns nothing, with the weights that it needs.
	around(p gpt.Pass, commands func() error) error
	// gather makes this rank get the weights after the last step, including those that other ranks
	// update, as far as it has memory for them.
	gather() error
	// together reports whether every pass moves weights, so that all ranks take part in it.
	together() bool
	// buckets returns how many parts the gradients go in between the ranks.
	buckets() int
}
