package script

import (
	"errors"
	"fmt"
)

// Bounds of a message. A message may hold more only when it is one entry, or one transaction.
const (
	// MaxPackBytes is the largest payload of several entries.
	MaxPackBytes = 256 << 10
	// MaxPackEntries is the largest number of entries.
	MaxPackEntries = 512
	// PartBytes is the largest payload of one message: a larger one goes in parts of this size.
	PartBytes = 1 << 20
)

// An Entry is one entry of the outbox.
type Entry struct {
	ID      string // ms-seq
	Effects string // packed effects, see docs/sonic.md; empty at the end of a transaction
	Tx      string // id of the transaction that the entry belongs to, or empty
}

// A Pack is what one message carries, or several when it is too large for one. Its payload is a msgpack array of
// id, effects, id, effects, .. as strings.
type Pack struct {
	First, Last string // ids of its first and last entry
	Payload     []byte

	last int64 // position of Last
}

// Build packs entries from the first on, as many as fit, and returns how many it took. Transactions are not
// split: their entries go into one pack. It takes none when entries end within the first transaction: call it again with
// more of the stream. An id that is malformed, or not above the one before, is an error.
func Build(entries []Entry) (p Pack, taken int, err error) {
	size, filled := 0, 0 // of the taken entries
	last := int64(-1)
	for taken < len(entries) {
		end, complete := unit(entries, taken)
		if !complete {
			break
		}
		more, moreFilled := 0, 0
		for _, e := range entries[taken:end] {
			if e.Effects == "" {
				continue
			}
			more += len(e.ID) + len(e.Effects) + stringOverhead
			moreFilled++
		}
		if taken > 0 && (size+more > MaxPackBytes-arrayOverhead || end > MaxPackEntries) {
			break
		}
		for _, e := range entries[taken:end] {
			position, err := Position(e.ID)
			if err != nil {
				return Pack{}, 0, err
			}
			if position <= last {
				return Pack{}, 0, fmt.Errorf("%w: %s comes behind %s", ErrID, e.ID, ID(last))
			}
			last = position
		}
		size, filled, taken = size+more, filled+moreFilled, end
	}
	if taken == 0 {
		return Pack{}, 0, nil
	}
	p = Pack{First: entries[0].ID, Last: entries[taken-1].ID, last: last}
	p.Payload = appendArray(make([]byte, 0, size+arrayOverhead), 2*filled)
	for _, e := range entries[:taken] {
		if e.Effects != "" {
			p.Payload = appendString(appendString(p.Payload, e.ID), e.Effects)
		}
	}
	return p, taken, nil
}

const (
	arrayOverhead  = 5
	stringOverhead = 1 + 5 // of an id and of effects
)

// unit returns where the entry or the transaction at entries[at] ends, and whether it is all there. A transaction
// ends with an entry without effects, and before an entry that does not belong to it.
func unit(entries []Entry, at int) (end int, complete bool) {
	tx := entries[at].Tx
	if tx == "" || entries[at].Effects == "" {
		return at + 1, true
	}
	for end = at + 1; end < len(entries); end++ {
		if entries[end].Tx != tx {
			return end, true
		}
		if entries[end].Effects == "" {
			return end + 1, true
		}
	}
	return end, false
}

// Parts returns the payload in pieces of PartBytes, each for a message of its own: one when it is not larger. A pack of
// several parts holds one entry or one transaction, so it is cut in the same way by whoever builds it again.
func (p Pack) Parts() [][]byte {
	parts := make([][]byte, 0, 1+len(p.Payload)/PartBytes)
	rest := p.Payload
	for len(rest) > PartBytes {
		parts = append(parts, rest[:PartBytes])
		rest = rest[PartBytes:]
	}
	return append(parts, rest)
}

// Position returns the source position of a part, which counts from 0. The last part has that of Last, those before it the
// ones before. The library leaves room for them: no other entry has them.
func (p Pack) Position(part int) int64 {
	parts := max(1, (len(p.Payload)+PartBytes-1)/PartBytes)
	return p.last - int64(parts-1-part)
}

// ErrPayload is the error for a payload that is no pack.
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
	before := int64(-1)
	for range n / 2 {
		var id, effects []byte
		if id, rest, err = readString(rest); err == nil {
			effects, rest, err = readString(rest)
		}
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPayload, err)
		}
		position, err := Position(string(id))
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPayload, err)
		}
		if position <= before {
			return nil, fmt.Errorf("%w: %s comes behind %s", ErrPayload, id, ID(before))
		}
		before = position
		entries = append(entries, Entry{ID: string(id), Effects: string(effects)})
	}
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: %d bytes behind the last entry", ErrPayload, len(rest))
	}
	return entries, nil
}

// Effects reads the packed effects of an entry: of each its values, op and policy first.
func Effects(packed string) ([][]string, error) {
	var effects [][]string
	rest := []byte(packed)
	for len(rest) > 0 {
		n, behind, err := readArray(rest)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrPayload, err)
		}
		if n < 4 {
			return nil, fmt.Errorf("%w: an effect of %d values", ErrPayload, n)
		}
		rest = behind
		effect := make([]string, n)
		for i := range effect {
			var value []byte
			if value, rest, err = readString(rest); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrPayload, err)
			}
			effect[i] = string(value)
		}
		effects = append(effects, effect)
	}
	return effects, nil
}
