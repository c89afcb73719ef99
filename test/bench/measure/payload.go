package measure

import (
	"encoding/binary"
	"math/rand/v2"
	"time"
)

// Body is a payload that compresses about as well as JSON does: half of it is
// random.
func Body(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		if i%2 == 0 {
			b[i] = byte(r.Uint32())
		} else {
			b[i] = 'x'
		}
	}
	return b
}

// Bodies are payloads to send in turn: one and the same compresses as no data does.
func (p Piece) Bodies() [][]byte {
	if p.Format != Varied {
		return [][]byte{Body(p.Payload)}
	}
	all := make([][]byte, 4096)
	r := rand.New(rand.NewPCG(7, uint64(p.Payload)))
	for i := range all {
		all[i] = Body(p.Payload)
		for at := 0; at < p.Payload; at += 2 {
			all[i][at] = byte(r.Uint32())
		}
	}
	return all
}

// Varied is the format of messages that differ from one to the next.
const Varied = "varied"

// Stamp makes a payload with the time in it. Stamped reads it.
func Stamp(n int) []byte {
	p := make([]byte, max(n, 8))
	binary.BigEndian.PutUint64(p, uint64(time.Now().UnixNano()))
	return p
}

// Stamped returns the time in a payload of Stamp.
func Stamped(p []byte) time.Time { return time.Unix(0, int64(binary.BigEndian.Uint64(p))) }
