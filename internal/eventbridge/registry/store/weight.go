package store

import "github.com/aviaryhq/aviary/internal/eventbridge/registry/model"

// checkWeight refuses rules whose patterns weigh too much. Rules that weigh no more than before are
// accepted: they may be older than the limit.
func checkWeight(f *model.FaultList, s, old *model.Subscriber, snapshot *Snapshot) {
	before, now := 0, s.Weight()
	if old != nil {
		before = old.Weight()
	}
	switch all := snapshot.weight - before + now; {
	case now <= before:
	case now > model.MaxSubscriberWeight:
		f.Add("/rules", "the patterns have %d fields and alternatives with their $or written out, and there can be %d: $or multiplies", now, model.MaxSubscriberWeight)
	case all > model.MaxWeight:
		f.Add("/rules", "the patterns of all subscribers would have %d fields and alternatives with their $or written out, and there can be %d", all, model.MaxWeight)
	}
}
