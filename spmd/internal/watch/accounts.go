package watch

import "time"

// accounts are the accounts of all ranks, as they come.
type accounts struct {
	waiting map[int]bool
	parts   [][]byte // by rank
}

// Accounts asks every rank for its Account, and returns the whole ones within the limit. It is
// nil for a rank that has none, or does not answer. Ranks 0 and 1 may ask, one call at a time;
// others get nothing.
func (n *Net) Accounts(limit time.Duration) [][]byte {
	if n.hub == nil {
		return make([][]byte, n.cfg.Size)
	}
	return n.hub.accounts(limit)
}

func (h *hub) accounts(limit time.Duration) [][]byte {
	a := &accounts{waiting: map[int]bool{}, parts: make([][]byte, len(h.members))}
	h.mu.Lock()
	h.last = a
	for rank, m := range h.members {
		if m != nil && !m.gone {
			a.waiting[rank] = true
			m.line.send(message{Kind: msgAccount})
		}
	}
	h.mu.Unlock()
	h.await(limit, func() bool { return len(a.waiting) == 0 })
	h.mu.Lock()
	defer h.mu.Unlock()
	h.last = nil
	for rank := range a.waiting {
		a.lose(rank)
	}
	return a.parts
}

// lose drops the incomplete account of a rank.
func (a *accounts) lose(rank int) {
	if a.waiting[rank] {
		delete(a.waiting, rank)
		a.parts[rank] = nil
	}
}

// take adds a part of a rank's account.
func (a *accounts) take(rank int, part []byte, come int) {
	a.parts[rank] = append(a.parts[rank], part...)
	if come == 0 {
		delete(a.waiting, rank)
	}
}

// sendAccount sends this rank's account to a hub, in messages that are short enough.
func (n *Net) sendAccount(k *link) {
	var rest []byte
	if n.cfg.Account != nil {
		rest = n.cfg.Account()
	}
	for come := (len(rest) - 1) / MaxState; come >= 0; come-- {
		part := rest[:min(len(rest), MaxState)]
		rest = rest[len(part):]
		k.line.send(message{Kind: msgPart, Part: part, Come: come})
	}
}
