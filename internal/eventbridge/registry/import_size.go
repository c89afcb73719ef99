package registry

// draftSizes follows how many bytes the registry has while a file is imported: what the registry has no room for is found before the first change.
type draftSizes struct {
	store *Store
	bytes int
}

func (s *Store) draftSizes() *draftSizes {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &draftSizes{s, s.contents.bytes}
}

// putBus says what is wrong with the size of a bus that is to be stored.
func (d *draftSizes) putBus(made Bus, old *Bus) error {
	_, _, made.Revision = d.store.view(busKey(made.Name))
	made.Changed, made.Created = now(), now()
	if old != nil {
		made.Created = old.Created
	}
	return d.put(busKey(made.Name), &made, &record{Revision: made.Revision, Time: made.Changed})
}

// putSubscriber is putBus of a subscriber.
func (d *draftSizes) putSubscriber(made Subscriber, old *Subscriber) error {
	key := subscriberKey(made.Bus, made.Name)
	_, known, revision := d.store.view(key)
	made.Revision, made.Changed = revision, now()
	r := &record{Revision: revision, Time: made.Changed}
	if old == nil {
		made.Created, made.UID = made.Changed, newUID()
	}
	if known != nil {
		r.Former = known.former
		if old != nil {
			r.Job = known.job
		}
	}
	return d.put(key, &made, r)
}

func (d *draftSizes) put(key string, object any, r *record) error {
	if err := r.put(key, object, d.store.opts.Keys); err != nil {
		return err
	}
	return d.take(key, r)
}

// remove counts what stays of an object that is deleted.
func (d *draftSizes) remove(snapshot *Snapshot, step Step) {
	r := &record{Revision: snapshot.revision + 1, Time: now(), Deleted: true, Former: []string{""}}
	key := busKey(step.Bus)
	if step.Subscriber != "" {
		key = subscriberKey(step.Bus, step.Subscriber)
		r.Former = []string{snapshot.Subscriber(step.Bus, step.Subscriber).UID}
		if _, known, _ := d.store.view(key); known != nil {
			r.Former = append(r.Former, known.former...)
		}
	}
	_ = d.take(key, r) // it is never refused
}

// take counts a record in place of the one that its key has.
func (d *draftSizes) take(key string, r *record) error {
	r.Format, r.Change, r.By = formatVersion, newID(), d.store.opts.Instance
	m, err := r.message(key)
	if err != nil {
		return err
	}
	size, old := len(m.Payload), 0
	if _, known, _ := d.store.view(key); known != nil {
		old = known.bytes
	}
	d.bytes += size - old
	return fits(d.bytes, size, old)
}
