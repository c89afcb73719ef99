package wire

import (
	"errors"
	"fmt"
)

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
	n, rest, err := readArray(payload)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPayload, err)
	}
	if n%2 != 0 {
		return nil, fmt.Errorf("%w: an id without effects", ErrPayload)
	}
	entries := make([]Entry, 0, n/2)
	var before ID
	for range n / 2 {
		var text, effects []byte
		if text, rest, err = readString(rest); err == nil {
			effects, rest, err = readString(rest)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPayload, err)
		}
		id, err := ParseID(string(text))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPayload, err)
		}
		if id.Compare(before) <= 0 {
			return nil, fmt.Errorf("%w: %s comes after %s", ErrPayload, id, before)
		}
		before = id
		entries = append(entries, Entry{ID: id, Effects: string(effects)})
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the last entry", ErrPayload, len(rest))
	}
	return entries, nil
}

// Effects reads the packed effects of an entry. Each effect is a list of values that begins with op
// and policy.
func Effects(packed string) ([][]string, error) {
	var effects [][]string
	err := eachEffect([]byte(packed), func(values [][]byte, _ []byte) error {
		effect := make([]string, len(values))
		for i, value := range values {
			effect[i] = string(value)
		}
		effects = append(effects, effect)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return effects, nil
}
