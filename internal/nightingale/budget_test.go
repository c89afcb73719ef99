package nightingale

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
	"github.com/aviaryhq/aviary/test/fakebroker/publishtest"

	encoding "github.com/aviaryhq/aviary/internal/nightingale/format"
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

// TestMessagesLargerThanTheBytesInFlight: labels are repeated with every sample, so a small body can
// become far more than the memory of all requests. It is published in pieces, in order.
func TestMessagesLargerThanTheBytesInFlight(t *testing.T) {
	for name, value := range map[string]string{"long": strings.Repeat("x", 60<<10), "escaped": strings.Repeat("\x01", 12<<10)} {
		body := writetest.Marshal(t, repeated(value))
		for format, text := range map[string]string{"json": `"value":%d}`, "json-kafka-adapter": `"value":"%d"}`} {
			d := newDouble(t, func(cfg *Config) { cfg.Format = format })
			published, total := 0, 0
			d.receiver.topics.Divert(func(_ context.Context, _ string, records []messaging.Record) (bool, error) {
				size := 0
				for _, r := range records {
					if want := fmt.Sprintf(text, published); !strings.HasSuffix(string(r.Payload), want) {
						t.Errorf("%s, %s: want %s, got the end %s", name, format, want, r.Payload[len(r.Payload)-20:])
					}
					published++
					size += len(r.Payload)
				}
				total += size
				assert.Less(t, size, 2*encoding.PieceBytes)
				assert.LessOrEqual(t, d.receiver.budget.Used(), int64(2*encoding.PieceBytes))
				return published%3 > 0, nil // the memory of some pieces is still in use
			})
			status, text, _ := d.post(t, writetest.Compress(body))
			require.Equal(t, http.StatusNoContent, status, text)
			assert.Equal(t, repetitions, published)
			assert.Greater(t, int64(total), d.receiver.budget.Limit())
			assert.Zero(t, d.receiver.budget.Used())
		}
	}
}

// TestTheLargestRequestIsStored: one that needs nearly all of decoded_bytes and of memory_bytes.
func TestTheLargestRequestIsStored(t *testing.T) {
	limits := DefaultConfig().Limits
	req := writetest.Request(0, 0)
	for i := range 45_000 {
		series := writetest.Request(1, 16).Timeseries[0]
		series.Labels[1].Value = fmt.Sprint(i)
		series.Labels[2].Value = strings.Repeat("x", 330)
		req.Timeseries = append(req.Timeseries, series)
	}
	body := writetest.Marshal(t, req)
	require.Greater(t, len(body), int(limits.DecodedBytes)*9/10)
	require.Less(t, len(body), int(limits.DecodedBytes))
	for _, name := range encoding.Names() {
		t.Run(name, func(t *testing.T) {
			d := newDouble(t, func(cfg *Config) { cfg.Format, cfg.Dedup.Entries = name, 0 })
			entries, most := 0, int64(0)
			d.receiver.topics.Divert(func(_ context.Context, _ string, records []messaging.Record) (bool, error) {
				entries += len(records)
				most = max(most, d.receiver.budget.Used())
				return true, nil
			})
			status, text, _ := d.post(t, writetest.Compress(body))
			require.Equal(t, http.StatusNoContent, status, text)
			if name != "packed" {
				assert.Len(t, req.Timeseries, entries)
			}
			assert.LessOrEqual(t, most, int64(limits.DecodedBytes+limits.MemoryBytes)+16<<20)
			t.Logf("%d bytes in flight", most)
		})
	}
}

const repetitions = 2000

// repeated returns a request with many samples of one series, whose values are their numbers.
func repeated(label string) *prompb.WriteRequest {
	req := writetest.OneSeries("__name__", "m", "label", label)
	req.Timeseries[0].Samples = nil
	for i := range repetitions {
		req.Timeseries[0].Samples = append(req.Timeseries[0].Samples, prompb.Sample{Value: float64(i), Timestamp: 5})
	}
	return req
}

// TestAPieceThatIsNotStoredEndsItsPart: later samples of the series must not overtake it. Parts of
// other topics are stored, and are not published again.
func TestAPieceThatIsNotStoredEndsItsPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := templated(t, publishtest.NewCluster(), nil)
		req := repeated(strings.Repeat("x", 20<<10))
		req.Timeseries[0].Labels = append(req.Timeseries[0].Labels, prompb.Label{Name: "job", Value: "bad"})
		req.Timeseries = append(jobs("a").Timeseries, append(req.Timeseries, jobs("z").Timeseries...)...)
		body := writetest.Marshal(t, req)
		var published []string
		pieces := 0
		d.receiver.topics.Divert(func(_ context.Context, topic string, records []messaging.Record) (bool, error) {
			d.mu.Lock()
			defer d.mu.Unlock()
			if len(records) == 0 {
				return true, nil
			}
			if topic == badTopic {
				if pieces++; pieces == 3 {
					return true, refusal.Unavailable("publish", refusal.RetryUnavailable, "not stored")
				}
			}
			for _, r := range records {
				_, value, _ := strings.Cut(string(r.Payload[len(r.Payload)-14:]), `"value":`)
				published = append(published, topic+" "+value)
			}
			return true, nil
		})
		status, text, _ := d.post(t, writetest.Compress(body))
		require.Equal(t, http.StatusServiceUnavailable, status, text)
		first := len(published)
		assert.Less(t, first, repetitions)
		status, text, _ = d.post(t, writetest.Compress(body))
		require.Equal(t, http.StatusNoContent, status, text)
		count := map[string]int{}
		for _, line := range published {
			topic, _, _ := strings.Cut(line, " ")
			count[topic]++
		}
		assert.Equal(t, 1, count["persistent://public/public/m-a"])
		assert.Equal(t, 1, count["persistent://public/public/m-z"])
		var again []string
		for _, line := range published[first:] {
			if strings.HasPrefix(line, badTopic) {
				again = append(again, line)
			}
		}
		require.Len(t, again, repetitions, "all of the part again, in order")
		for i, line := range again {
			require.Equal(t, fmt.Sprintf("%s %d}", badTopic, i), line)
		}
		assert.Zero(t, d.receiver.budget.Used())
	})
}

// TestWhatEncodingTakesIsReturned: an attempt outlives its request, and takes memory for symbols
// while it encodes.
func TestWhatEncodingTakesIsReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDoubleWithoutServer(t, func(cfg *Config) { cfg.Format = "packed" })
		acknowledge := make(chan struct{})
		d.receiver.topics.Divert(func(context.Context, string, []messaging.Record) (bool, error) {
			<-acknowledge
			return true, nil
		})
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, withExemplars())))
		require.Equal(t, http.StatusServiceUnavailable, status, text)
		close(acknowledge)
		d.receiver.running.Wait()
		assert.Zero(t, d.receiver.budget.Used())
	})
}

// withExemplars returns a request that is more than one piece. Its exemplars' labels become symbols
// only when they are encoded.
func withExemplars() *prompb.WriteRequest {
	req := new(prompb.WriteRequest)
	for i := range 400 {
		one := writetest.OneSeries("__name__", "m", "label", strings.Repeat("x", 60_000)+strconv.Itoa(i)).Timeseries[0]
		for j := range 50 {
			one.Exemplars = append(one.Exemplars, prompb.Exemplar{Labels: []prompb.Label{{Name: "id", Value: fmt.Sprint(i, "-", j)}}, Timestamp: 1})
		}
		req.Timeseries = append(req.Timeseries, one)
	}
	return req
}

// TestAPartThatIsStoredIsNotPublishedAgain: its topic may refuse requests before the other parts are
// stored.
func TestAPartThatIsStoredIsNotPublishedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := publishtest.NewCluster()
		d := templated(t, c, nil)
		c.Hold = map[string][]func(){badTopic: nil}
		req := repeated(strings.Repeat("x", 20<<10))
		req.Timeseries[0].Labels = append(req.Timeseries[0].Labels, prompb.Label{Name: "job", Value: "bad"})
		req.Timeseries = append(jobs("good").Timeseries, req.Timeseries...)
		answered := make(chan int)
		send := func(body []byte) {
			status, _, _ := d.post(t, writetest.Compress(body))
			answered <- status
		}
		body := writetest.Marshal(t, req)
		go send(body)
		synctest.Wait()
		require.Equal(t, 1, c.Count(goodTopic))
		c.Mu.Lock()
		c.Hold[goodTopic] = nil // another request's message is not acknowledged: the topic refuses further ones
		c.Mu.Unlock()
		other := jobs("good")
		other.Timeseries[0].Samples[0].Value = 7
		go send(writetest.Marshal(t, other))
		for range 2 {
			assert.Equal(t, http.StatusServiceUnavailable, <-answered)
		}
		for d.receiver.topics.Check(t.Context()) == nil || c.Count(badTopic) < repetitions {
			<-time.After(time.Second) // the bubble's clock
			c.Mu.Lock()
			held := c.Hold[badTopic]
			c.Hold[badTopic] = nil
			c.Mu.Unlock()
			for _, done := range held {
				done()
			}
		}
		go send(body)
		synctest.Wait()
		c.Mu.Lock()
		held := slices.Concat(c.Hold[badTopic], c.Hold[goodTopic])
		c.Mu.Unlock()
		for _, done := range held {
			done()
		}
		assert.Equal(t, http.StatusNoContent, <-answered)
		assert.Equal(t, 2, c.Count(goodTopic))
		assert.Equal(t, repetitions, c.Count(badTopic))
	})
}

// TestRequestsThatBecomeTooMuch: the bound is known before anything is published.
func TestRequestsThatBecomeTooMuch(t *testing.T) {
	d := newDouble(t, func(cfg *Config) { cfg.Limits.PublishedBytes = 16 << 20 })
	body := writetest.Marshal(t, repeated(strings.Repeat("x", 10<<10)))
	status, text, _ := d.post(t, writetest.Compress(body))
	assert.Equal(t, http.StatusRequestEntityTooLarge, status)
	assert.Contains(t, text, "at most 16MiB are allowed")
	assert.Empty(t, d.published())
	assert.Zero(t, d.receiver.budget.Used())
}
