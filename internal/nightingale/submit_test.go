package nightingale

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

// TestRetriedBodyIsPublishedOnce: one body in each state that its first request may
// have left it in.
func TestRetriedBodyIsPublishedOnce(t *testing.T) {
	body := writetest.Marshal(t, writetest.Request(3, 2))
	t.Run("acknowledged", func(t *testing.T) {
		d := newDouble(t, nil)
		for _, headers := range [][]string{nil, {"Retry-Attempt", "1"}, nil} {
			status, text, _ := d.post(t, writetest.Compress(body), headers...)
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Len(t, d.published(), 3)
		assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.repeated.WithLabelValues("answered")), 0)
		assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0, "counted once")
	})
	t.Run("still under way", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			d, _ := newDoubleWithoutServer(t, nil)
			acknowledge := make(chan struct{})
			d.publish = func(context.Context, []messaging.Record) (bool, error) {
				<-acknowledge
				return true, nil
			}
			for range 2 {
				status, text, header := d.post(t, writetest.Compress(body))
				assert.Equal(t, http.StatusServiceUnavailable, status, text)
				assert.NotEmpty(t, header.Get("Retry-After"))
			}
			close(acknowledge)
			status, text, _ := d.post(t, writetest.Compress(body))
			assert.Equal(t, http.StatusNoContent, status, text)
			assert.Len(t, d.published(), 3)
			assert.Zero(t, d.receiver.budget.Used())
		})
	})
	t.Run("stored in part, the rest is too large", func(t *testing.T) {
		d := newDouble(t, nil)
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			return true, publish.TooLarge{1}
		}
		for range 2 {
			status, text, _ := d.post(t, writetest.Compress(body))
			assert.Equal(t, http.StatusBadRequest, status)
			assert.Contains(t, text, "1 samples are in messages that are larger than the broker accepts, the others were written")
		}
		assert.Len(t, d.published(), 3)
		assert.InDelta(t, 2, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "written")), 0)
		assert.InDelta(t, 1, testutil.ToFloat64(d.metrics.rejected.WithLabelValues("record_too_large")), 0)
	})
	t.Run("invalid in part", func(t *testing.T) {
		d := newDouble(t, nil)
		req := writetest.Request(3, 2)
		req.Timeseries[0].Labels[1].Name = ""
		for range 2 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)))
			assert.Equal(t, http.StatusBadRequest, status)
			assert.Contains(t, text, "1 of 3 series are invalid", "the same answer")
		}
		assert.Len(t, d.published(), 2)
	})
	t.Run("failed", func(t *testing.T) {
		d := newDouble(t, nil)
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			return true, refusal.Unavailable("pulsar_unavailable", refusal.RetryUnavailable, "unavailable")
		}
		status, _, _ := d.post(t, writetest.Compress(body))
		assert.Equal(t, http.StatusServiceUnavailable, status)
		d.mu.Lock()
		d.publish = nil
		d.mu.Unlock()
		status, text, _ := d.post(t, writetest.Compress(body))
		assert.Equal(t, http.StatusNoContent, status, text)
		assert.Len(t, d.published(), 6, "nothing was stored the first time")
	})
	t.Run("refused", func(t *testing.T) {
		d := newDouble(t, nil)
		for range 2 {
			status, _, _ := d.post(t, writetest.Compress([]byte{0x0a, 0x03, 0xff, 0xff, 0xff}))
			assert.Equal(t, http.StatusBadRequest, status)
		}
		assert.InDelta(t, 0, testutil.ToFloat64(d.metrics.repeated.WithLabelValues("answered")), 0)
	})
	t.Run("of another tenant", func(t *testing.T) {
		d := newDouble(t, nil)
		for _, name := range []string{"a", "b", ""} {
			status, text, _ := d.post(t, writetest.Compress(body), tenant.Header, name)
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Len(t, d.published(), 9)
	})
	t.Run("without dedup", func(t *testing.T) {
		d := newDouble(t, func(c *Config) { c.Dedup.Entries = 0 })
		for range 2 {
			status, text, _ := d.post(t, writetest.Compress(body))
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		assert.Len(t, d.published(), 6)
	})
	t.Run("all at once", func(t *testing.T) {
		d := newDouble(t, nil)
		var senders sync.WaitGroup
		for range 8 {
			senders.Go(func() {
				status, text, _ := d.post(t, writetest.Compress(body))
				assert.Equal(t, http.StatusNoContent, status, text)
			})
		}
		senders.Wait()
		assert.Len(t, d.published(), 3)
	})
}

// TestDeliveryKeepsItsPlaceInTheBudget: messages of requests that ran out of time
// are still in memory.
func TestDeliveryKeepsItsPlaceInTheBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDoubleWithoutServer(t, nil)
		acknowledge := make(chan struct{})
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			<-acknowledge
			return true, nil
		}
		status, _, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 2))))
		assert.Equal(t, http.StatusServiceUnavailable, status)
		assert.Positive(t, d.receiver.budget.Used())
		close(acknowledge)
		synctest.Wait()
		require.Zero(t, d.receiver.budget.Used())
	})
}

// TestMemoryIsBoundedWhileNothingIsAcknowledged: attempts that outlive their requests
// are refused room before they pile up, and give it back when they end.
func TestMemoryIsBoundedWhileNothingIsAcknowledged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDoubleWithoutServer(t, func(c *Config) {
			c.Limits.CompressedBytes, c.Limits.DecodedBytes, c.Limits.InFlightBytes = 256*config.KiB, config.MiB, config.MiB+256*config.KiB
		})
		acknowledge := make(chan struct{})
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			<-acknowledge
			return true, nil
		}
		full := 0
		for i := range 60 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(500+i, 3))))
			require.Equal(t, http.StatusServiceUnavailable, status)
			if strings.Contains(text, "in flight") {
				full++
			}
			assert.Less(t, d.receiver.budget.Used(), 2*d.receiver.budget.Limit())
		}
		assert.Greater(t, full, 20)
		close(acknowledge)
		synctest.Wait()
		require.Zero(t, d.receiver.budget.Used())
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(500, 3))))
		assert.Equal(t, http.StatusNoContent, status, text)
	})
}

func TestClosingWaitsForDeliveries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := new(receiver)
		v.background, v.cancel = context.WithCancel(t.Context())
		v.running.Go(func() { <-v.background.Done(); <-time.After(time.Second) })
		began := time.Now()
		require.NoError(t, v.close(t.Context()))
		assert.Equal(t, time.Second, time.Since(began))
	})
}
