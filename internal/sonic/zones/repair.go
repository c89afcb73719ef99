package zones

import (
	"context"
	"fmt"
	"slices"
)

// Repair makes keys that differ equal again. The zone with the newer version of a key ships the
// key's state, through its own outbox, to all other zones. So only a zone's own Sonic writes to its
// Redis. Clients may write meanwhile. A write of another zone to the key at that moment may be
// overwritten, as by any write of the whole key.
type Repair struct {
	Check
	// From is the zone whose state Repair takes, without regard to versions. Empty: the zone with
	// the newer version. If the versions are equal or unknown, it is the zone that has the key, or
	// this zone if both have it. Keys of policy none have no versions: they can be repaired only
	// with From.
	From string
	// Note is called for each key that is shipped, with the zone it comes from. It may be nil.
	Note func(d Difference, from string)
}

// Run compares the zones and repairs the keys that differ. It returns how many keys it repaired,
// and the remaining differences.
func (r *Repair) Run(ctx context.Context) (repaired int, left []Difference, err error) {
	if r.From != "" && r.From != r.Local.name && r.From != r.Peer.name {
		return 0, nil, fmt.Errorf("zone %s is not one of the two compared zones, %s and %s", r.From, r.Local.name, r.Peer.name)
	}
	found, err := r.Check.Run(ctx)
	if err != nil || len(found) == 0 {
		return 0, nil, err
	}
	local, peer, err := r.versions(ctx, found)
	if err != nil {
		return 0, nil, err
	}
	var shipped []Key
	for _, d := range found {
		from, why := r.choose(d, local[d.Key], peer[d.Key])
		if from == nil {
			d.Why = why
			left = append(left, d)
			continue
		}
		if r.Note != nil {
			r.Note(d, from.name)
		}
		if _, err := from.call(ctx, from.shardOf(d.Name), "sonic_overwrite", d.DB, d.Name); err != nil {
			return 0, left, fmt.Errorf("cannot ship key %s: %w", d.Key, err)
		}
		shipped = append(shipped, d.Key)
	}
	if len(shipped) == 0 {
		return 0, left, nil
	}
	// Once the effects have arrived, the keys must be equal.
	if err := r.awaitEffects(ctx, shipped); err != nil {
		return 0, left, err
	}
	still, err := r.confirm(ctx, slices.Clone(shipped))
	if err != nil {
		return 0, left, err
	}
	for _, d := range still {
		d.Why = "it differs again after its state was shipped"
		left = append(left, d)
	}
	return len(shipped) - len(still), left, nil
}

// versions returns the newest versions of keys in both zones. It returns none with From.
func (r *Repair) versions(ctx context.Context, found []Difference) (local, peer map[Key]version, err error) {
	if r.From != "" {
		return nil, nil, nil
	}
	keys := map[Key]struct{}{}
	for _, d := range found {
		keys[d.Key] = struct{}{}
	}
	return both(&r.Check, func(z *Zone) (map[Key]version, error) { return z.newest(ctx, keys) })
}

// choose returns the zone whose state to take, or nil and the reason. An unknown version is older than
// any other.
func (r *Repair) choose(d Difference, local, peer version) (*Zone, string) {
	switch policy := d.Values[r.Local.name].Policy; {
	case d.Changing:
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
	case local.before(peer) || !peer.before(local) && d.Values[r.Local.name].Type == none:
		return r.Peer, ""
	default:
		return r.Local, ""
	}
}
