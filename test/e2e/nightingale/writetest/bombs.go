package writetest

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// Field returns a protobuf field of bytes.
func Field(number byte, data []byte) []byte {
	return batch.AppendText(nil, int(number), string(data))
}

// Bomb is a small body that needs much memory.
type Bomb struct {
	Version int // of remote write
	Body    []byte
}

// Bombs returns, by kind of element, bodies whose decoded elements take many times the bytes of the
// body.
func Bombs(n int) map[string]Bomb {
	empty := func(number byte) []byte { return bytes.Repeat([]byte{number<<3 | batch.WireBytes, 0}, n) }
	series := func(version int, number byte, data []byte) Bomb {
		head := []byte{4<<3 | batch.WireBytes, 0} // version 2's empty symbol
		if number == 1 {
			head = nil
		}
		return Bomb{version, append(head, Field(number, data)...)}
	}
	histogram := func(number byte, data []byte) Bomb { return series(1, 1, Field(4, Field(number, data))) }
	zeros := make([]byte, n)
	unpacked := bytes.Repeat([]byte{12<<3 | batch.WireVarint, 0}, n)
	return map[string]Bomb{
		"labels":            series(1, 1, empty(1)),
		"plain labels":      series(1, 1, bytes.Repeat([]byte{0x0a, 4, 0x0a, 0, 0x12, 0}, n)),
		"samples":           series(1, 1, empty(2)),
		"exemplars":         series(1, 1, empty(3)),
		"exemplars' labels": series(1, 1, Field(3, empty(1))),
		"histograms":        series(1, 1, empty(4)),
		"spans":             series(1, 1, Field(4, empty(11))),
		"deltas":            histogram(12, zeros),
		"single deltas":     series(1, 1, Field(4, unpacked)),
		"metadata":          {1, empty(3)},
		"series":            {1, empty(1)},
		"symbols":           {2, empty(4)},
		"2.0 series":        {2, append([]byte{4<<3 | batch.WireBytes, 0}, empty(5)...)},
		"2.0 labels":        series(2, 5, Field(1, make([]byte, 2*n))),
		"2.0 single labels": series(2, 5, bytes.Repeat([]byte{1 << 3, 0}, 2*n)),
		"2.0 samples":       series(2, 5, empty(2)),
		"2.0 histograms":    series(2, 5, empty(3)),
		"2.0 exemplars":     series(2, 5, empty(4)),
	}
}
