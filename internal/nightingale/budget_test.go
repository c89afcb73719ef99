package nightingale

import (
	"context"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/writetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
)

// leastRead is what is reserved for a body before its first byte.
const leastRead = 4 << 10

// TestSlowBodiesHoldWhatHasArrived: senders that claim much and send little leave the
// others their room.
func TestSlowBodiesHoldWhatHasArrived(t *testing.T) {
	for name, framing := range map[string]string{"sized": "Content-Length: 10000000\r\n\r\nabc", "chunked": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"} {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t, nil)
			const slow = 20
			for range slow {
				d.dial(t, head+framing)
			}
			require.Eventually(t, func() bool { return d.receiver.budget.Used() == slow*leastRead }, await.Patience, time.Millisecond)
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, large(80)))) // 4.8 MB
			assert.Equal(t, http.StatusNoContent, status, text)
		})
	}
}

// large is a request of n series of 60 KB.
func large(n int) *prompb.WriteRequest {
	req := new(prompb.WriteRequest)
	for i := range n {
		req.Timeseries = append(req.Timeseries, writetest.OneSeries("__name__", "m", "i", strconv.Itoa(i), "l", strings.Repeat("x", 60_000)).Timeseries...)
	}
	return req
}

// TestSlowSendersHaveNoLargeBuffers: those that other requests leave behind, and that
// nobody counts any more.
func TestSlowSendersHaveNoLargeBuffers(t *testing.T) {
	d := newDouble(t, func(c *Config) { c.Dedup.Entries = 0 })
	body := writetest.Marshal(t, large(60))                                                                        // 3.6 MB, and 180 KB as they are sent
	d.receiver.topics.Divert(func(context.Context, string, []messaging.Record) (bool, error) { return true, nil }) // keeps nothing
	began := live()
	const slow = 20
	for i := range slow {
		status, text, _ := d.post(t, writetest.Compress(body))
		require.Equal(t, http.StatusNoContent, status, text)
		d.dial(t, head+"Content-Length: 10000\r\n\r\n")
		require.Eventually(t, func() bool { return d.receiver.budget.Used() == int64(i+1)*leastRead }, await.Patience, time.Millisecond)
	}
	grown := live() - began
	assert.Less(t, grown, int64(slow<<20))
}

// live is the memory in use, in bytes, without what pools keep for later: that ends with the second
// collection.
func live() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestWriteReservesElementsAsTheyAreDecoded: small bodies at the same time share the
// bytes in flight by what they take in memory, not by what they are.
func TestWriteReservesElementsAsTheyAreDecoded(t *testing.T) {
	d := newDouble(t, nil)
	elsewhere := d.receiver.budget.Hold("")
	require.NoError(t, elsewhere.Set(d.receiver.budget.Limit()-4<<20))
	body := writetest.Bombs(1 << 16)["histograms"].Body
	status, text, _ := d.post(t, writetest.Compress(body))
	assert.Equal(t, http.StatusServiceUnavailable, status, text)
	assert.Contains(t, text, "in flight")
	elsewhere.Release()
	status, text, _ = d.post(t, writetest.Compress(body))
	assert.Equal(t, http.StatusBadRequest, status, text)
	assert.Contains(t, text, "1 of 1 series are invalid")
	status, text, _ = d.post(t, writetest.Compress(writetest.Bombs(1 << 20)["histograms"].Body))
	assert.Equal(t, http.StatusRequestEntityTooLarge, status, text)
	assert.Contains(t, text, "in memory")
	require.Eventually(t, func() bool { return d.receiver.budget.Used() == 0 }, await.Patience, time.Millisecond)
}

// TestMessagesLargerThanTheirBudget: labels are repeated with every sample, so that a
// small body may stand for messages that no memory has room for.
func TestMessagesLargerThanTheirBudget(t *testing.T) {
	for name, value := range map[string]string{"long": strings.Repeat("x", 60<<10), "escaped": strings.Repeat("\x01", 12<<10)} {
		req := writetest.OneSeries("__name__", "m", "label", value)
		for len(req.Timeseries[0].Samples) < 1500 {
			req.Timeseries[0].Samples = append(req.Timeseries[0].Samples, prompb.Sample{Value: 1, Timestamp: 5})
		}
		d := newDouble(t, nil)
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
		assert.Equal(t, http.StatusRequestEntityTooLarge, status, name)
		assert.Contains(t, text, "at most 67108864 are allowed")
		assert.Empty(t, d.published())
		assert.Zero(t, d.receiver.budget.Used())
	}
}
