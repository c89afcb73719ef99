package zones

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Check compares two zones. A difference counts when it lasts: while both zones came to have all effects that either had, neither changed the key,
// and that several times over.
type Check struct {
	Local, Peer *Zone
	// Zones are the names of all zones.
	Zones []string
	// Progress is told, about once a second, how far the comparison is. Nil: nobody.
	Progress func(Progress)
	// Patience is how long a zone may stand still that has not applied all effects of the others. Default 30s.
	Patience time.Duration
}

// Progress is how far a comparison is.
type Progress struct {
	// Zone whose keys are gone through; empty: keys that differed are looked at again, in the round Round.
	Zone  string
	Round int
	// Done of about Keys keys. Suspects differed when they were looked at.
	Done, Keys, Suspects int64
}

func (p Progress) String() string {
	if p.Zone == "" {
		return fmt.Sprintf("round %d: %d keys differ", p.Round, p.Suspects)
	}
	return fmt.Sprintf("zone %s: %d of about %d keys, %d differ", p.Zone, p.Done, p.Keys, p.Suspects)
}

// Difference is a key that two zones hold different values of.
type Difference struct {
	Key
	// Values by zone.
	Values map[string]Value
	// Unsettled says that the key changed each time that it was looked at: it may be the same.
	Unsettled bool
}

func (d Difference) String() string {
	var parts []string
	for _, zone := range slices.Sorted(maps.Keys(d.Values)) {
		parts = append(parts, fmt.Sprintf("zone %s has %s", zone, d.Values[zone]))
	}
	text := fmt.Sprintf("%s: %s", d.Key, strings.Join(parts, ", "))
	if d.Unsettled {
		text += "; it changes all the time"
	}
	return text
}

const (
	// batch is how many keys are asked for at once.
	batch = 256
	// rounds is in how many rounds a key has to differ, and mostRounds how many there are for one that changes.
	rounds, mostRounds = 3, 10
	// shortTTL: keys that expire sooner are not compared, for they go at another moment in each zone.
	shortTTL = 10 * time.Second
	// expiryTolerance is how much expiries may differ.
	expiryTolerance = 50 // ms
	// sayEvery is how often progress is told, lookEvery how often a zone is asked how far it is.
	sayEvery, lookEvery = time.Second, 50 * time.Millisecond
)

// Run returns the differences, in order of databases and names.
func (c *Check) Run(ctx context.Context) ([]Difference, error) {
	for _, z := range []*Zone{c.Local, c.Peer} {
		if err := z.check(ctx); err != nil {
			return nil, err
		}
	}
	suspects := map[Key]struct{}{}
	if err := c.compare(ctx, c.Local, c.Peer, suspects); err != nil {
		return nil, err
	}
	if err := c.compare(ctx, c.Peer, c.Local, suspects); err != nil {
		return nil, err
	}
	return c.settle(ctx, slices.Collect(maps.Keys(suspects)))
}

// compare goes through all keys of a zone and notes those that the other one holds something else of.
func (c *Check) compare(ctx context.Context, from, to *Zone, suspects map[Key]struct{}) error {
	databases, err := from.databases(ctx)
	if err != nil {
		return err
	}
	p := Progress{Zone: from.name}
	for _, n := range databases {
		p.Keys += n
	}
	var said time.Time
	for _, db := range slices.Sorted(maps.Keys(databases)) {
		for cursor := ""; cursor != "0"; {
			if cursor == "" {
				cursor = "0"
			}
			var names []string
			if cursor, names, err = from.walk(ctx, db, cursor, batch); err != nil {
				return err
			}
			found, err := from.digests(ctx, db, names)
			if err != nil {
				return err
			}
			others, err := to.digests(ctx, db, names)
			if err != nil {
				return err
			}
			for i, e := range found {
				if differ(e.value, others[i].value, time.Now()) {
					suspects[Key{db, e.name}] = struct{}{}
				}
			}
			p.Done, p.Suspects = p.Done+int64(len(found)), int64(len(suspects))
			if c.Progress != nil && time.Since(said) >= sayEvery {
				c.Progress(p)
				said = time.Now()
			}
		}
	}
	if c.Progress != nil {
		c.Progress(p)
	}
	return nil
}

// differ reports whether two values are of zones that have drifted apart.
func differ(a, b Value, now time.Time) bool {
	if a.Type == b.Type && a.Digest == b.Digest && max(a.Expires-b.Expires, b.Expires-a.Expires) <= expiryTolerance {
		return false
	}
	soon := now.Add(shortTTL).UnixMilli()
	return (a.Expires < 0 || a.Expires > soon) && (b.Expires < 0 || b.Expires > soon)
}

// pair is what both zones hold of a key.
type pair struct{ local, peer Value }

// settle looks at keys again until it is clear which differ.
func (c *Check) settle(ctx context.Context, keys []Key) ([]Difference, error) {
	lasted := map[Key]int{}
	last := map[Key]pair{}
	for round := 1; len(keys) > 0 && round <= mostRounds; round++ {
		if c.Progress != nil {
			c.Progress(Progress{Round: round, Suspects: int64(len(keys))})
		}
		before, err := c.sample(ctx, keys)
		if err != nil {
			return nil, err
		}
		if err := c.exchange(ctx); err != nil {
			return nil, err
		}
		after, err := c.sample(ctx, slices.Collect(maps.Keys(before)))
		if err != nil {
			return nil, err
		}
		keys = keys[:0]
		certain := true
		for key, values := range after {
			last[key] = values
			if values == before[key] {
				lasted[key]++
			}
			certain = certain && lasted[key] >= rounds
			keys = append(keys, key)
		}
		if certain {
			break
		}
	}
	var found []Difference
	for _, key := range keys {
		found = append(found, Difference{
			Key: key, Values: map[string]Value{c.Local.name: last[key].local, c.Peer.name: last[key].peer}, Unsettled: lasted[key] < rounds,
		})
	}
	slices.SortFunc(found, func(a, b Difference) int {
		if a.DB != b.DB {
			return a.DB - b.DB
		}
		return strings.Compare(a.Name, b.Name)
	})
	return found, nil
}

// sample returns what both zones hold of those keys that differ now.
func (c *Check) sample(ctx context.Context, keys []Key) (map[Key]pair, error) {
	names := map[int][]string{}
	for _, key := range keys {
		names[key.DB] = append(names[key.DB], key.Name)
	}
	found := map[Key]pair{}
	for db, all := range names {
		for some := range slices.Chunk(all, batch) {
			local, err := c.Local.digests(ctx, db, some)
			if err != nil {
				return nil, err
			}
			peer, err := c.Peer.digests(ctx, db, some)
			if err != nil {
				return nil, err
			}
			for i, name := range some {
				if differ(local[i].value, peer[i].value, time.Now()) {
					found[Key{db, name}] = pair{local[i].value, peer[i].value}
				}
			}
		}
	}
	return found, nil
}

// exchange waits until both zones have all effects that either has now.
func (c *Check) exchange(ctx context.Context) error {
	local, err := c.Local.reached(ctx)
	if err != nil {
		return err
	}
	peer, err := c.Peer.reached(ctx)
	if err != nil {
		return err
	}
	patience := c.Patience
	if patience == 0 {
		patience = 30 * time.Second
	}
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	atLocal, atPeer := local, peer
	for moved := time.Now(); ; {
		localLacks, peerLacks := atLocal.lacks(peer, c.Zones), atPeer.lacks(local, c.Zones)
		if len(localLacks) == 0 && len(peerLacks) == 0 {
			return nil
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("zones %s and %s do not come to have the same effects: %s waits for those of zones %q, %s for those of %q: see /zones of their Sonics",
				c.Local.name, c.Peer.name, c.Local.name, localLacks, c.Peer.name, peerLacks)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		nowLocal, err := c.Local.reached(ctx)
		if err != nil {
			return err
		}
		nowPeer, err := c.Peer.reached(ctx)
		if err != nil {
			return err
		}
		// Only what is waited for is progress: beats of zones that are not behind come all the time.
		if atLocal.moved(nowLocal, localLacks) || atPeer.moved(nowPeer, peerLacks) {
			moved = time.Now()
		}
		atLocal, atPeer = nowLocal, nowPeer
	}
}
