package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// contents holds what the topic says, record by record. It is not safe for concurrent use; the
// snapshots that it makes are.
type contents struct {
	keys *Keys
	log  *zap.Logger

	snapshot *Snapshot
	shared   bool // the snapshot is in use elsewhere: each change makes a copy
	entries  map[string]*entry
	replaced int // records that later ones replaced, since the last compaction began
}

// entry is what is known about a key, besides its object.
type entry struct {
	bytes    int
	revision int64
	deleted  time.Time // zero: not deleted
	former   []string
	job      json.RawMessage
	sealedBy string            // the ID of the key that encrypts its secrets; empty: none
	secrets  bool              // some of its secrets are not encrypted
	broken   string            // why its object cannot be read
	rest     *model.Subscriber // what can be read of a broken object, without secrets; nil: nothing
	newer    bool
}

// objectRevision is the revision of the key's object, 0 if there is no object. An object whose
// record cannot be read has the record's revision, at least 1.
func (e *entry) objectRevision() int64 {
	if e == nil || !e.deleted.IsZero() {
		return 0
	}
	return max(e.revision, 1)
}

func newContents(keys *Keys, log *zap.Logger) *contents {
	return &contents{keys: keys, log: log, snapshot: emptySnapshot(), entries: make(map[string]*entry)}
}

// share returns the snapshot of everything that was read so far. contents never changes it again.
func (c *contents) share() *Snapshot {
	c.shared = true
	return c.snapshot
}

// apply applies a message. It returns the ID of the change that wrote it, and whether there is a
// new snapshot.
func (c *contents) apply(d *messaging.Delivery) (change string, changed bool) {
	if d.Key == fenceKey {
		r, _ := readRecord(d)
		c.replaced++
		return r.Change, false
	}
	bus, name, ok := cutKey(d.Key)
	if !ok && d.Key != counterKey {
		c.log.Error("skipped a message that Eventbridge did not write to the registry's topic",
			zap.String("key", d.Key), zap.Stringer("id", d.ID))
		return "", false
	}
	before := c.entries[d.Key]
	if before != nil {
		c.replaced++
	}
	if d.Payload == nil { // a tombstone, which follows a deletion
		delete(c.entries, d.Key)
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
	put := func(*Snapshot) {}
	if err == nil && ok && !r.Deleted {
		put, err = c.object(d.Key, &r)
	}
	if err != nil {
		e.broken, e.rest = err.Error(), restOf(&r, bus, name)
		c.log.Error("a record of the registry cannot be read: its bus or subscriber is unavailable until it is written again",
			zap.String("key", d.Key), zap.Int64("revision", r.Revision), zap.Stringer("id", d.ID), zap.Error(err))
		put = func(s *Snapshot) { s.unreadable[d.Key] = e.broken }
	}
	c.entries[d.Key] = e
	c.change(bus, name, func(s *Snapshot) {
		s.revision = max(s.revision, r.Revision)
		if ok {
			s.remove(bus, name)
			put(s)
		}
	})
	return r.Change, true
}

// object decodes the object of a record. It returns what puts the object into a snapshot.
func (c *contents) object(key string, r *record) (put func(*Snapshot), err error) {
	bus, name, _ := cutKey(key)
	if name == "" {
		b := new(model.Bus)
		if err := r.get(key, b, c.keys); err != nil {
			return nil, err
		}
		if b.Name != bus {
			return nil, fmt.Errorf("it holds the bus %s", model.Quote(b.Name))
		}
		return func(s *Snapshot) { s.buses[bus] = b }, nil
	}
	sub := new(model.Subscriber)
	if err := r.get(key, sub, c.keys); err != nil {
		return nil, err
	}
	if sub.Bus != bus || sub.Name != name {
		return nil, fmt.Errorf("it holds the subscriber %s of bus %s", model.Quote(sub.Name), model.Quote(sub.Bus))
	}
	var f model.FaultList
	model.ValidateRules(&f, sub) // it also compiles the rules
	return func(s *Snapshot) { s.setSubscriber(sub) }, f.Err()
}

// restOf returns the subscriber of a record that cannot be read completely, without its secrets. It
// returns nil if the record does not even have the subscriber's name and UID.
func restOf(r *record, bus, name string) *model.Subscriber {
	s := new(model.Subscriber)
	if name == "" || json.Unmarshal(r.Object, s) != nil || s.Bus != bus || s.Name != name || s.UID == "" {
		return nil
	}
	model.EachSecret(reflect.ValueOf(s).Elem(), "", func(string, secret.String) secret.String { return "" })
	return s
}

// change changes the snapshot or, once it is shared, a copy of it.
func (c *contents) change(bus, name string, f func(*Snapshot)) {
	if c.shared {
		c.snapshot = c.snapshot.copyFor(bus, name)
	}
	f(c.snapshot)
}

// newer reports whether there is a record of a newer format.
func (c *contents) newer() bool {
	for _, e := range c.entries {
		if e.newer {
			return true
		}
	}
	return false
}

// bytes is the size of all records.
func (c *contents) bytes() (n int) {
	for _, e := range c.entries {
		n += e.bytes
	}
	return n
}

func (s *Snapshot) remove(bus, name string) {
	delete(s.unreadable, objectKey(bus, name))
	if name == "" {
		delete(s.buses, bus)
	} else {
		s.removeSubscriber(bus, name)
	}
}
