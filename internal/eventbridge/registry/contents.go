package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// contents are what the topic says, record by record. They are not safe for concurrent use; the snapshots that they make are.
type contents struct {
	keys *Keys
	log  *zap.Logger

	snapshot *Snapshot
	loaded   bool // snapshots are shared: each change makes another one
	entries  map[string]*entry
	newer    int // records of a newer format
	bytes    int // of all records
	replaced int // records that later ones replaced, since compaction was asked for
}

// entry is what is known of a key besides its object.
type entry struct {
	bytes    int
	revision int64
	deleted  time.Time // zero: it is not
	former   []string
	job      json.RawMessage
	sealedBy string      // the key of its secrets; empty without
	secrets  bool        // it has some that are not encrypted
	broken   string      // why its object cannot be read
	rest     *Subscriber // what can be read of it all the same: without secrets; nil: nothing
	newer    bool
}

func newContents(keys *Keys, log *zap.Logger) *contents {
	return &contents{keys: keys, log: log, snapshot: emptySnapshot(), entries: make(map[string]*entry)}
}

// share returns the snapshot of what was read so far. From now on it is not touched.
func (c *contents) share() *Snapshot {
	c.loaded = true
	return c.snapshot
}

// apply takes a message over. It returns the name of the change that wrote it, and whether the snapshot is another one.
func (c *contents) apply(d *messaging.Delivery) (change string, changed bool) {
	if d.Key == fenceKey {
		r, _ := readRecord(d)
		c.replaced++
		return r.Change, false
	}
	bus, name, ok := cutKey(d.Key)
	if !ok && d.Key != counterKey {
		c.log.Error("the registry's topic holds a message that is not the registry's: it is passed over",
			zap.String("key", d.Key), zap.Stringer("id", d.ID))
		return "", false
	}
	before := c.entries[d.Key]
	if before != nil {
		c.replaced++
	}
	if d.Payload == nil { // a tombstone, behind a deletion
		c.set(d.Key, nil)
		if ok {
			c.change(bus, name, func(s *Snapshot) { s.remove(bus, name) })
		}
		return "", ok && before != nil && before.deleted.IsZero()
	}
	r, err := readRecord(d)
	e := &entry{bytes: len(d.Payload), revision: r.Revision, former: r.Former, job: r.Job, newer: errors.Is(err, errNewer)}
	if r.Deleted {
		e.deleted = r.Time
	}
	if r.Sealed != nil {
		e.sealedBy = r.Sealed.Key
	}
	e.secrets = len(r.Secrets) > 0
	var b *Bus
	var sub *Subscriber
	if err == nil && ok && !r.Deleted {
		b, sub, err = c.object(d.Key, bus, name, &r)
	}
	if err != nil {
		e.broken, e.rest = err.Error(), restOf(&r, bus, name)
		c.log.Error("a record of the registry cannot be read: its object is left out until it is changed again",
			zap.String("key", d.Key), zap.Int64("revision", r.Revision), zap.Stringer("id", d.ID), zap.Error(err))
	}
	c.set(d.Key, e)
	c.change(bus, name, func(s *Snapshot) {
		s.revision = max(s.revision, r.Revision)
		if !ok {
			return
		}
		s.remove(bus, name)
		switch {
		case err != nil:
			s.unreadable[d.Key] = e.broken
		case sub != nil:
			s.setSubscriber(sub)
		case b != nil:
			s.buses[bus] = b
		}
	})
	return r.Change, true
}

// object reads what a record holds.
func (c *contents) object(key, bus, name string, r *record) (*Bus, *Subscriber, error) {
	if name == "" {
		b := new(Bus)
		if err := r.get(key, b, c.keys); err != nil {
			return nil, nil, err
		}
		if b.Name != bus {
			return nil, nil, fmt.Errorf("it holds the bus %s", quote(b.Name))
		}
		return b, nil, nil
	}
	s := new(Subscriber)
	if err := r.get(key, s, c.keys); err != nil {
		return nil, nil, err
	}
	if s.Bus != bus || s.Name != name {
		return nil, nil, fmt.Errorf("it holds the subscriber %s of bus %s", quote(s.Name), quote(s.Bus))
	}
	var f faults
	validateRules(&f, s) // compiles
	return nil, s, f.err()
}

// restOf returns the subscriber of a record that cannot be read whole, without its secrets: nil where not even its name and UID are known.
func restOf(r *record, bus, name string) *Subscriber {
	s := new(Subscriber)
	if name == "" || json.Unmarshal(r.Object, s) != nil || s.Bus != bus || s.Name != name || s.UID == "" {
		return nil
	}
	eachSecret(reflect.ValueOf(s).Elem(), "", func(string, secret.String) secret.String { return "" })
	return s
}

// change changes the snapshot, or a copy of it.
func (c *contents) change(bus, name string, f func(*Snapshot)) {
	if c.loaded {
		c.snapshot = c.snapshot.copyFor(bus, name)
	}
	f(c.snapshot)
}

// set takes over what is known of a key now; nil: nothing.
func (c *contents) set(key string, e *entry) {
	if old := c.entries[key]; old != nil {
		c.bytes -= old.bytes
		if old.newer {
			c.newer--
		}
	}
	if e == nil {
		delete(c.entries, key)
		return
	}
	c.entries[key] = e
	c.bytes += e.bytes
	if e.newer {
		c.newer++
	}
}

func (s *Snapshot) remove(bus, name string) {
	if name == "" {
		delete(s.buses, bus)
		delete(s.unreadable, busKey(bus))
		return
	}
	s.removeSubscriber(bus, name)
	delete(s.unreadable, subscriberKey(bus, name))
}
