package nightingale

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/door"
)

// field is a field of protobuf with bytes in it.
func field(number byte, data []byte) []byte {
	return appendText(nil, int(number), string(data))
}

// bombs are bodies whose elements take many times their bytes, by kind of element.
func bombs(n int) map[string]struct {
	decode func(*batch, []byte, Limits) error
	body   []byte
} {
	empty := func(number byte) []byte { return bytes.Repeat([]byte{number<<3 | wireBytes, 0}, n) }
	type bomb = struct {
		decode func(*batch, []byte, Limits) error
		body   []byte
	}
	series := func(decode func(*batch, []byte, Limits) error, number byte, data []byte) bomb {
		head := []byte{4<<3 | wireBytes, 0} // version 2's empty symbol
		if number == 1 {
			head = nil
		}
		return bomb{decode, append(head, field(number, data)...)}
	}
	histogram := func(number byte, data []byte) bomb { return series(decodeV1, 1, field(4, field(number, data))) }
	zeros := make([]byte, n)
	unpacked := bytes.Repeat([]byte{12<<3 | wireVarint, 0}, n)
	return map[string]bomb{
		"labels":            series(decodeV1, 1, empty(1)),
		"plain labels":      series(decodeV1, 1, bytes.Repeat([]byte{0x0a, 4, 0x0a, 0, 0x12, 0}, n)),
		"samples":           series(decodeV1, 1, empty(2)),
		"exemplars":         series(decodeV1, 1, empty(3)),
		"exemplars' labels": series(decodeV1, 1, field(3, empty(1))),
		"histograms":        series(decodeV1, 1, empty(4)),
		"spans":             series(decodeV1, 1, field(4, empty(11))),
		"deltas":            histogram(12, zeros),
		"single deltas":     series(decodeV1, 1, field(4, unpacked)),
		"metadata":          {decodeV1, empty(3)},
		"series":            {decodeV1, empty(1)},
		"symbols":           {decodeV2, empty(4)},
		"2.0 series":        {decodeV2, append([]byte{4<<3 | wireBytes, 0}, empty(5)...)},
		"2.0 labels":        series(decodeV2, 5, field(1, make([]byte, 2*n))),
		"2.0 single labels": series(decodeV2, 5, bytes.Repeat([]byte{1 << 3, 0}, 2*n)),
		"2.0 samples":       series(decodeV2, 5, empty(2)),
		"2.0 histograms":    series(decodeV2, 5, empty(3)),
		"2.0 exemplars":     series(decodeV2, 5, empty(4)),
	}
}

// TestElementsAreBoundedInMemory: few bytes must not become many. The bound holds
// before an element is appended, so slices have the usual slack and no more.
func TestElementsAreBoundedInMemory(t *testing.T) {
	const bound = 1 << 20
	limits := testLimits()
	limits.MemoryBytes, limits.Series = bound, 1<<30
	for name, bomb := range bombs(1 << 18) {
		t.Run(name, func(t *testing.T) {
			b := new(batch)
			err := bomb.decode(b, bomb.body, limits)
			refused := (*door.Refusal)(nil)
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, http.StatusRequestEntityTooLarge, refused.Status)
			assert.Equal(t, "memory_bytes", refused.Reason)
			assert.Less(t, b.size(), 3*bound/2)
		})
	}
	for name, bomb := range bombs(1 << 8) {
		t.Run(name+" within the bound", func(t *testing.T) {
			assert.NoError(t, bomb.decode(new(batch), bomb.body, limits))
		})
	}
}

// TestElementsAreChargedAtLeastTheirSize: what is reserved covers what is there.
func TestElementsAreChargedAtLeastTheirSize(t *testing.T) {
	budget := door.NewBudget(64<<20, .75, prometheus.NewGauge(prometheus.GaugeOpts{}))
	for name, bomb := range bombs(1 << 12) {
		t.Run(name, func(t *testing.T) {
			b := new(batch)
			b.elements.held = budget.Hold("")
			require.NoError(t, bomb.decode(b, bomb.body, testLimits()))
			held := int(b.elements.held.Bytes())
			assert.Equal(t, b.elements.taken, held)
			assert.GreaterOrEqual(t, 3*held/2+4096, b.size())
			assert.Equal(t, held, int(budget.Used()))
			b.elements.held.Release()
		})
	}
}

// TestWriteReservesElementsAsTheyAreDecoded: small bodies at the same time share the
// bytes in flight by what they take in memory, not by what they are.
func TestWriteReservesElementsAsTheyAreDecoded(t *testing.T) {
	d := newDouble(t, nil)
	elsewhere := d.receiver.budget.Hold("")
	require.NoError(t, elsewhere.Set(d.receiver.budget.Limit()-4<<20))
	body := bombs(1 << 16)["histograms"].body
	status, text, _ := d.post(t, compress(body))
	assert.Equal(t, http.StatusServiceUnavailable, status, text)
	assert.Contains(t, text, "in flight")
	elsewhere.Release()
	status, text, _ = d.post(t, compress(body))
	assert.Equal(t, http.StatusBadRequest, status, text)
	assert.Contains(t, text, "1 of 1 series are invalid")
	status, text, _ = d.post(t, compress(bombs(1 << 20)["histograms"].body))
	assert.Equal(t, http.StatusRequestEntityTooLarge, status, text)
	assert.Contains(t, text, "in memory")
	require.Eventually(t, func() bool { return d.receiver.budget.Used() == 0 }, 5*time.Second, time.Millisecond)
}

// helps is a body of n series whose help is one of two texts in turn.
func helps(n int, one, two string) []byte {
	body := slices.Concat([]byte{4<<3 | wireBytes, 0}, field(4, []byte(one)), field(4, []byte(two)))
	for range n / 2 {
		body = append(body, field(5, field(5, []byte{3 << 3, 1}))...)
		body = append(body, field(5, field(5, []byte{3 << 3, 2}))...)
	}
	return body
}

// TestHelpOfSeriesIsBounded: a text that series refer to is neither read nor copied
// for each of them.
func TestHelpOfSeriesIsBounded(t *testing.T) {
	const n = 4_000
	limits := DefaultConfig().Limits
	limits.MemoryBytes = 3 << 20
	for name, letter := range map[string]string{"ASCII": "x", "not UTF-8": "\xff", "half of it": "x\xff"} {
		t.Run(name+", large", func(t *testing.T) {
			text := strings.Repeat(letter, 4<<20/len(letter))
			began := time.Now()
			var refused *door.Refusal
			if err := decodeV2(new(batch), helps(n, text, text+"y"), limits); err != nil {
				require.ErrorAs(t, err, &refused)
			}
			assert.Less(t, time.Since(began), 5*time.Second, "minutes when all of it is looked at")
		})
		t.Run(name+", cut", func(t *testing.T) {
			text := strings.Repeat(letter, 2*maxFamilyHelp)
			b := new(batch)
			err := decodeV2(b, helps(n, text, text+"y"), limits)
			copied := 0
			for i := range b.about {
				copied += len(b.about[i].help)
			}
			assert.Less(t, copied, int(limits.MemoryBytes))
			if letter == "\xff" { // all of which is one sign in the end
				require.NoError(t, err)
				return
			}
			var refused *door.Refusal
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, "memory_bytes", refused.Reason)
		})
	}
}
