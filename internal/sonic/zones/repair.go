package zones

import (
	"context"
	"fmt"
	"slices"
)

// Repair makes keys that differ the same again. The zone that holds the newer version ships its state, through its own outbox, to all the others: nothing is
// written to another zone's Redis but by its own Sonic. Writes go on; one that another zone makes to the key at that moment may be overtaken, as by
// any write of the whole key.
type Repair struct {
	Check
	// From is the zone whose state is taken, whatever the versions say. Empty: the zone of the newer version; when the versions are the same, or forgotten, the
	// one that has the key, and this zone when both have it. Keys of policy none have no versions: they need it.
	From string
	// Note is told of each key that is shipped, and from where. Nil: nobody.
	Note func(d Difference, from string)
}

// Left is a difference that was not repaired.
type Left struct {
	Difference
	Why string
}

func (l Left) String() string { return l.Difference.String() + ": " + l.Why }

// Run compares the zones and repairs what differs. It returns how many keys it repaired, and what is left.
func (r *Repair) Run(ctx context.Context) (repaired int, left []Left, err error) {
	if r.From != "" && r.From != r.Local.name && r.From != r.Peer.name {
		return 0, nil, fmt.Errorf("zone %s is none of the two that are compared, %s and %s", r.From, r.Local.name, r.Peer.name)
	}
	found, err := r.Check.Run(ctx)
	if err != nil || len(found) == 0 {
		return 0, nil, err
	}
	choose, err := r.chooser(ctx, found)
	if err != nil {
		return 0, nil, err
	}
	var shipped []Key
	for _, d := range found {
		from, why := choose(d)
		if from == nil {
			left = append(left, Left{d, why})
			continue
		}
		if r.Note != nil {
			r.Note(d, from.name)
		}
		if _, err := from.call(ctx, "sonic_restate", d.DB, d.Name); err != nil {
			return 0, left, fmt.Errorf("cannot ship key %s: %w", d.Key, err)
		}
		shipped = append(shipped, d.Key)
	}
	if len(shipped) == 0 {
		return 0, left, nil
	}
	// Then they have to be the same, once the effects have arrived.
	if err := r.exchange(ctx); err != nil {
		return 0, left, err
	}
	still, err := r.settle(ctx, slices.Clone(shipped))
	if err != nil {
		return 0, left, err
	}
	for _, d := range still {
		left = append(left, Left{d, "it differs again after its state was shipped"})
	}
	return len(shipped) - len(still), left, nil
}

// chooser returns a function that says which zone's state is to be taken, or why none is.
func (r *Repair) chooser(ctx context.Context, found []Difference) (func(Difference) (*Zone, string), error) {
	keys := map[Key]struct{}{}
	for _, d := range found {
		keys[d.Key] = struct{}{}
	}
	var local, peer map[Key]version
	if r.From == "" {
		var err error
		if local, err = r.Local.newest(ctx, keys); err != nil {
			return nil, err
		}
		if peer, err = r.Peer.newest(ctx, keys); err != nil {
			return nil, err
		}
	}
	return func(d Difference) (*Zone, string) {
		switch policy := d.Values[r.Local.name].Policy; {
		case d.Unsettled:
			return nil, "run the repair again when fewer writes come"
		case policy != d.Values[r.Peer.name].Policy:
			return nil, "the zones have different policies for it: give them the same conflicts"
		case policy == policyCounter:
			return nil, "zones share a counter's changes, not its value: add the difference to the counter where it lacks, directly in that zone's Redis"
		case r.From == r.Local.name:
			return r.Local, ""
		case r.From == r.Peer.name:
			return r.Peer, ""
		case policy == policyNone:
			return nil, "a key of policy none has no version: name the zone that writes it by -repair.from"
		}
		a, b := local[d.Key], peer[d.Key] // unknown ones are older than all
		switch {
		case a.before(b):
			return r.Peer, ""
		case b.before(a):
			return r.Local, ""
		case d.Values[r.Local.name].Type == none:
			return r.Peer, ""
		default:
			return r.Local, ""
		}
	}, nil
}
