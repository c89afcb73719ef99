// Package message has what a zone's messages say of themselves: the ids of the effects in them, and their properties.
package message

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// ID is the id of an effect: that of its entry in the origin's stream of effects. The zero ID is before all others.
type ID struct {
	Ms  uint64 // milliseconds since 1970, by the origin's hybrid logical clock
	Seq uint64 // of those with the same Ms
}

// ParseID reads an id as Redis writes it, ms-seq. The empty text is the zero ID.
func ParseID(text string) (ID, error) {
	if text == "" {
		return ID{}, nil
	}
	ms, seq, ok := strings.Cut(text, "-")
	if !ok {
		return ID{}, fmt.Errorf("%q is no id of an effect", text)
	}
	var id ID
	var err error
	if id.Ms, err = strconv.ParseUint(ms, 10, 64); err == nil {
		id.Seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if err != nil {
		return ID{}, fmt.Errorf("%q is no id of an effect", text)
	}
	return id, nil
}

// String writes the id as Redis does.
func (id ID) String() string {
	b := make([]byte, 0, 32)
	b = strconv.AppendUint(b, id.Ms, 10)
	b = append(b, '-')
	return string(strconv.AppendUint(b, id.Seq, 10))
}

// IsZero reports whether the id names no effect.
func (id ID) IsZero() bool { return id == ID{} }

// Compare orders two ids of one origin: -1, 0 or +1.
func (id ID) Compare(o ID) int {
	if id.Ms != o.Ms {
		return cmp.Compare(id.Ms, o.Ms)
	}
	return cmp.Compare(id.Seq, o.Seq)
}

// Max returns the later of two ids.
func Max(a, b ID) ID {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// seqBits is how many bits of a position hold an id's Seq. What is left, below the sign, is enough for Ms until the year 2248.
const seqBits = 20

// Position is where a message whose last effect is id stands among those of its topic, when the one before it is at the position previous, -1 for none.
// Positions rise.
//
// It is the id as one number, so that it is above those of messages that retention has removed. A Seq that does not fit, and the parts of
// one message, which have the same last id, are numbered on from the one before.
func (id ID) Position(previous int64) int64 {
	return max(int64(id.Ms<<seqBits|min(id.Seq, 1<<seqBits-1)), previous+1)
}
