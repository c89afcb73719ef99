package registry

// weight is what the patterns of the rules take in an engine.
func (s *Subscriber) weight() (n int) {
	for i := range s.Rules {
		if p := s.Rules[i].compiled; p != nil {
			n += p.Weight()
		}
	}
	return n
}

// checkWeight refuses rules whose patterns take too much. Those that take no more than before are let through: they were there before the bound.
func (s *Subscriber) checkWeight(f *faults, old *Subscriber, snapshot *Snapshot) {
	before, now := 0, s.weight()
	if old != nil {
		before = old.weight()
	}
	switch all := snapshot.weight - before + now; {
	case now <= before:
	case now > MaxSubscriberWeight:
		f.add("/rules", "the patterns have %d fields and alternatives with their $or written out, and there can be %d: $or multiplies", now, MaxSubscriberWeight)
	case all > MaxWeight:
		f.add("/rules", "the patterns of all subscribers would have %d fields and alternatives with their $or written out, and there can be %d", all, MaxWeight)
	}
}
