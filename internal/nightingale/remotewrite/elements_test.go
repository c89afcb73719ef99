package remotewrite

import (
	"bytes"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// decode is the decoder of a version.
func decode(version int) func(*batch.Batch, []byte, Limits) error {
	return Protocols()[version-1].Decode
}

// TestElementsAreBoundedInMemory: few bytes must not become many. The bound holds
// before an element is appended, so slices have the usual slack and no more.
func TestElementsAreBoundedInMemory(t *testing.T) {
	const bound = 1 << 20
	limits := DefaultLimits()
	limits.MemoryBytes, limits.Series = bound, 1<<30
	for name, bomb := range writetest.Bombs(1 << 18) {
		t.Run(name, func(t *testing.T) {
			b := new(batch.Batch)
			err := decode(bomb.Version)(b, bomb.Body, limits)
			refused := (*refusal.Error)(nil)
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, http.StatusRequestEntityTooLarge, refused.Status)
			assert.Equal(t, "memory_bytes", refused.Reason)
			assert.Less(t, b.Size(), 3*bound/2)
		})
	}
	for name, bomb := range writetest.Bombs(1 << 8) {
		t.Run(name+" within the bound", func(t *testing.T) {
			assert.NoError(t, decode(bomb.Version)(new(batch.Batch), bomb.Body, limits))
		})
	}
}

// TestRemovedReferencesStayCharged: their memory stays, so other elements cannot have it. The
// references take five bytes each in the body, and become texts in the batch.
func TestRemovedReferencesStayCharged(t *testing.T) {
	const bound = 1 << 20
	refs := writetest.Field(1, bytes.Repeat([]byte{0x80, 0x80, 0x80, 0x80, 0}, bound/4/5*9/10))
	samples := bytes.Repeat([]byte{2<<3 | batch.WireBytes, 0}, bound/batch.SampleBytes)
	body := slices.Concat([]byte{4<<3 | batch.WireBytes, 0}, writetest.Field(5, refs), writetest.Field(5, samples))
	limits, b := DefaultLimits(), new(batch.Batch)
	limits.MemoryBytes = bound
	assert.ErrorContains(t, DecodeV2(b, body, limits), "more than 1048576 bytes in memory")
	assert.Less(t, b.Size(), 3*bound/2)
}

// TestElementsAreChargedAtLeastTheirSize: what is reserved covers what is there.
func TestElementsAreChargedAtLeastTheirSize(t *testing.T) {
	budget := admission.NewBudget(64<<20, .75, prometheus.NewGauge(prometheus.GaugeOpts{}))
	for name, bomb := range writetest.Bombs(1 << 12) {
		t.Run(name, func(t *testing.T) {
			b := new(batch.Batch)
			b.Elements.Hold = budget.Hold("")
			require.NoError(t, decode(bomb.Version)(b, bomb.Body, DefaultLimits()))
			held := int(b.Elements.Hold.Bytes())
			assert.Equal(t, b.Elements.Reserved, held)
			assert.GreaterOrEqual(t, 3*held/2+4096, b.Size())
			assert.Equal(t, held, int(budget.Used()))
			b.Elements.Hold.Release()
		})
	}
}

// helps is a body of n series whose help is one of two texts in turn.
func helps(n int, one, two string) []byte {
	body := slices.Concat([]byte{4<<3 | batch.WireBytes, 0}, writetest.Field(4, []byte(one)), writetest.Field(4, []byte(two)))
	for range n / 2 {
		body = append(body, writetest.Field(5, writetest.Field(5, []byte{3 << 3, 1}))...)
		body = append(body, writetest.Field(5, writetest.Field(5, []byte{3 << 3, 2}))...)
	}
	return body
}

// processorTime is what this thread has used, which other processes do not add to.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used unix.Rusage
	require.NoError(t, unix.Getrusage(unix.RUSAGE_THREAD, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// TestHelpOfSeriesIsBounded: a text that series refer to is neither read nor copied
// for each of them.
func TestHelpOfSeriesIsBounded(t *testing.T) {
	const n = 4_000
	limits := DefaultLimits()
	limits.MemoryBytes = 3 << 20
	for name, letter := range map[string]string{"ASCII": "x", "not UTF-8": "\xff", "half of it": "x\xff"} {
		t.Run(name+", large", func(t *testing.T) {
			text := strings.Repeat(letter, 4<<20/len(letter))
			body := helps(n, text, text+"y")
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := processorTime(t)
			var refused *refusal.Error
			if err := DecodeV2(new(batch.Batch), body, limits); err != nil {
				require.ErrorAs(t, err, &refused)
			}
			assert.Less(t, processorTime(t)-began, 5*time.Second, "minutes when all of it is looked at")
		})
		t.Run(name+", cut", func(t *testing.T) {
			text := strings.Repeat(letter, 2*batch.MaxFamilyHelp)
			b := new(batch.Batch)
			err := DecodeV2(b, helps(n, text, text+"y"), limits)
			copied := 0
			for i := range b.SeriesMetadata {
				copied += len(b.SeriesMetadata[i].Help)
			}
			assert.Less(t, copied, int(limits.MemoryBytes))
			if letter != "x" { // nothing is copied
				require.NoError(t, err)
				return
			}
			var refused *refusal.Error
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, "memory_bytes", refused.Reason)
		})
	}
}

// TestSymbolsAreBoundedInMemory: references and symbols are charged as other elements.
func TestSymbolsAreBoundedInMemory(t *testing.T) {
	const bound = 1 << 20
	limits := DefaultLimits()
	limits.MemoryBytes, limits.Series = bound, 1<<30
	texts := func(n int) (labels []byte) {
		for i := range n {
			labels = append(labels, writetest.Field(1, append(writetest.Field(1, []byte("a")), writetest.Field(2, fmt.Appendf(nil, "%x", i))...))...)
		}
		return writetest.Field(1, labels)
	}
	all := writetest.Bombs(1 << 18)
	all["distinct labels"] = writetest.Bomb{Version: 1, Body: texts(1 << 15)}
	for name, one := range all {
		for kind, references := range map[string]bool{"references": true, "texts": false} {
			t.Run(name+", "+kind, func(t *testing.T) {
				b := &batch.Batch{References: references}
				err := decode(one.Version)(b, one.Body, limits)
				refused := (*refusal.Error)(nil)
				require.ErrorAs(t, err, &refused)
				assert.Equal(t, "memory_bytes", refused.Reason)
				assert.Less(t, b.Size(), 3*bound/2+batch.LeastRecent*batch.RefBytes)
			})
		}
	}
}
