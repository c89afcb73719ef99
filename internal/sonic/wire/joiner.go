package wire

import "fmt"

// Joiner joins stream entries to outbox entries. The library splits a large outbox entry into
// several stream entries, see 10_append.lua. Callers pass the stream entries in order.
type Joiner struct{ pieces []byte }

// Add takes the id and the fields of one stream entry. ok is false if it is a piece, and more
// pieces follow.
func (j *Joiner) Add(id string, fields map[string]any) (e Entry, ok bool, err error) {
	if e.ID, err = ParseID(id); err != nil {
		return e, false, err
	}
	if piece, is := fields["p"].(string); is {
		j.pieces = append(j.pieces, piece...)
		return e, false, nil
	}
	if e.Effects, ok = fields["e"].(string); !ok {
		return e, false, fmt.Errorf("entry %s without effects", id)
	}
	e.Transaction, _ = fields["t"].(string)
	if j.pieces != nil {
		e.Effects, j.pieces = string(append(j.pieces, e.Effects...)), nil
	}
	return e, true, nil
}
