package message

import "fmt"

// A Joiner makes entries of the stream of effects: a large one is in several, see 10_append.lua. They are given to it in their order.
type Joiner struct{ pieces []byte }

// Add takes the id and the fields of one entry of the stream. ok is false when it is a piece of one that goes on.
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
