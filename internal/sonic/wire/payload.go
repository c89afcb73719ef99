package wire

import "errors"

// Payload packs the ids and effects of entries as a MessagePack array: id, effects, id, effects. It
// leaves out entries without effects, which end transactions. It also returns how many entries have
// effects.
func Payload(entries []Entry) (payload []byte, effects int64) {
	size := 5
	for i := range entries {
		if e := &entries[i]; e.Effects != "" {
			effects++
			size += e.Size()
		}
	}
	payload = appendArray(make([]byte, 0, size), int(2*effects))
	for i := range entries {
		if e := &entries[i]; e.Effects != "" {
			payload = appendString(appendString(payload, e.ID.String()), e.Effects)
		}
	}
	return payload, effects
}

// ErrPayload is the error for a malformed payload.
var ErrPayload = errors.New("malformed payload")

// Entries reads a payload.
func Entries(payload []byte) ([]Entry, error) {
	r := reader{rest: payload}
	n := r.array()
	if n%2 != 0 {
		r.fail("an id without effects")
	}
	entries := make([]Entry, 0, n/2)
	var before ID
	for range n / 2 {
		e := Entry{ID: r.id(), Effects: string(r.text())}
		if e.ID.Compare(before) <= 0 {
			r.fail("%s comes after %s", e.ID, before)
		}
		before = e.ID
		entries = append(entries, e)
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return entries, nil
}

// Effect is an effect of an entry.
type Effect struct {
	// Values are op, policy, database, key or channel, and what the op says.
	Values []string

	packed string
}

// Effects reads the packed effects of an entry.
func Effects(packed string) (effects []Effect, err error) {
	r := reader{rest: []byte(packed)}
	at := func() int { return len(packed) - len(r.rest) }
	for len(r.rest) > 0 {
		begin := at()
		values := make([]string, r.array())
		if len(values) < 4 {
			r.fail("an effect of %d values", len(values))
		}
		for i := range values {
			size := len(r.text())
			values[i] = packed[at()-size : at()]
		}
		effects = append(effects, Effect{values, packed[begin:at()]})
	}
	if r.err != nil {
		return nil, r.err
	}
	return effects, nil
}
