// Package optim changes the weights of a model by its gradients. It has AdamW, Muon, the learning
// rate, and the decision whether a step is good enough to count.
package optim
