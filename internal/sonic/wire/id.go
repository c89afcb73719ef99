// Package wire defines a zone's messages: the ids of effects, the properties and the payload. It may
// import cluster.
package wire

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// ID is the id of an effect: the id of its entry in the origin's stream of effects. The zero ID is
// before all others.
type ID struct {
	Ms  uint64 // milliseconds since 1970, by the origin's hybrid logical clock
	Seq uint64 // orders ids with the same Ms
}

// ParseID reads an id as Redis writes it, ms-seq. The empty text is the zero ID.
func ParseID(text string) (ID, error) {
	if text == "" {
		return ID{}, nil
	}
	ms, seq, ok := strings.Cut(text, "-")
	if !ok {
		return ID{}, fmt.Errorf("%q is not the id of an effect", text)
	}
	var id ID
	var err error
	if id.Ms, err = strconv.ParseUint(ms, 10, 64); err == nil {
		id.Seq, err = strconv.ParseUint(seq, 10, 64)
	}
	if err != nil {
		return ID{}, fmt.Errorf("%q is not the id of an effect", text)
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

// seqBits is how many bits of a position hold an id's Seq. The other 43 bits, without the sign, are
// enough for Ms until the year 2248.
const seqBits = 20

// maxMs is the highest Ms that a position can hold.
const maxMs = 1<<(63-seqBits) - 1

// Position returns the id as one number. It is the position, among the messages of the topic, of
// the message that ends with this effect. The library chooses ids that fit. Position returns an
// error if this one does not.
func (id ID) Position() (int64, error) {
	if id.Ms > maxMs || id.Seq >= 1<<seqBits {
		return 0, fmt.Errorf("the id %s of an effect is too large for a position: check the clock", id)
	}
	return int64(id.Ms<<seqBits | id.Seq), nil
}

// AtPosition returns the id at a position, the zero ID for a negative one.
func AtPosition(p int64) ID {
	if p < 0 {
		return ID{}
	}
	return ID{Ms: uint64(p) >> seqBits, Seq: uint64(p) & (1<<seqBits - 1)}
}
