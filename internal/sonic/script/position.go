package script

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// An id of the outbox is ms-seq: milliseconds since 1970, and a number within the millisecond.
const (
	seqBits = 20
	msBits  = 63 - seqBits // up to the year 2248
)

// ErrID is the error for what is not an id of the outbox, or one that does not fit into a position.
var ErrID = errors.New("not an id of the outbox")

// Position returns the source position of an id: ms<<20 | seq. Positions are in the order of ids. The library sees to it that
// sequence numbers stay below 2^20.
func Position(id string) (int64, error) {
	msText, seqText, found := strings.Cut(id, "-")
	ms, errMs := strconv.ParseUint(msText, 10, msBits)
	seq, errSeq := strconv.ParseUint(seqText, 10, seqBits)
	if !found || errMs != nil || errSeq != nil || !plain(msText) || !plain(seqText) {
		return 0, fmt.Errorf("%w: %.40q", ErrID, id)
	}
	return int64(ms<<seqBits | seq), nil //nolint:gosec // 63 bits
}

// plain tells whether a decimal number is written as Redis writes it: without leading zeros.
func plain(number string) bool { return number == "0" || number != "" && number[0] != '0' }

// ID returns the id of a position, which must not be negative.
func ID(position int64) string {
	text := strconv.AppendInt(make([]byte, 0, 24), position>>seqBits, 10)
	text = append(text, '-')
	return string(strconv.AppendInt(text, position&(1<<seqBits-1), 10))
}
