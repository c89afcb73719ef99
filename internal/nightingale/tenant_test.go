package nightingale

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/tenant"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

func TestWriteHoldsTenantsToTheirQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDoubleWithoutServer(t, func(c *Config) {
			c.Tenants.Overrides = map[string]tenant.Quota{"small": {SamplesPerSecond: .01, Burst: 3}}
		})
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 2))), tenant.Header, "small")
		assert.Equal(t, http.StatusNoContent, status, text)
		status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 2))), tenant.Header, "small")
		assert.Equal(t, http.StatusNoContent, status, "a repeated body is free: %s", text)
		status, text, header := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 3))), tenant.Header, "small")
		assert.Equal(t, http.StatusTooManyRequests, status)
		assert.Contains(t, text, "quota")
		assert.Equal(t, "300", header.Get("Retry-After"))
		assert.InDelta(t, 3, testutil.ToFloat64(d.metrics.samples.WithLabelValues("sample", "throttled")), 0)
		status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 3))))
		assert.Equal(t, http.StatusNoContent, status, text)
		status, _, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 3))), tenant.Header, "a/b")
		assert.Equal(t, http.StatusBadRequest, status)
		assert.Len(t, d.published(), 6)
		assert.Zero(t, d.receiver.budget.Used())
	})
}

// TestRepeatsDuringAnOutageAreFree: what is answered 503 comes again, and again. It
// must not use up the quota, for a 429 loses the samples.
func TestRepeatsDuringAnOutageAreFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, entries := range []int{0, 100} { // with and without the memory of bodies
			d, _ := newDoubleWithoutServer(t, func(c *Config) {
				c.Tenants.Default = tenant.Quota{SamplesPerSecond: .001, Burst: 5}
				c.Dedup.Entries = entries
			})
			d.publish = func(context.Context, []messaging.Record) (bool, error) {
				return true, refusal.Unavailable("pulsar_unavailable", refusal.RetryUnavailable, "unavailable")
			}
			for range 10 {
				for _, labels := range []int{2, 3} { // two bodies
					status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, labels))))
					assert.Equal(t, http.StatusServiceUnavailable, status, text)
				}
			}
			d.mu.Lock()
			d.publish = nil
			d.mu.Unlock()
			for _, want := range []int{http.StatusNoContent, http.StatusTooManyRequests} {
				labels := 2
				if want == http.StatusTooManyRequests {
					labels = 3
				}
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, labels))))
				assert.Equal(t, want, status, "what is stored is charged: %s", text)
			}
		}
	})
}

// TestABodyIsChargedOnce: requests that bring the body of an attempt under way, or
// of one that ended well, are part of it.
func TestABodyIsChargedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := newDoubleWithoutServer(t, func(c *Config) {
			c.Tenants.Default = tenant.Quota{SamplesPerSecond: .0001, Burst: 6}
		})
		acknowledge := make(chan struct{})
		d.publish = func(context.Context, []messaging.Record) (bool, error) {
			<-acknowledge
			return true, nil
		}
		for range 3 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 2))))
			assert.Equal(t, http.StatusServiceUnavailable, status, text)
		}
		close(acknowledge)
		for range 3 {
			status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 2))))
			assert.Equal(t, http.StatusNoContent, status, text)
		}
		status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 3))))
		assert.Equal(t, http.StatusNoContent, status, "half of the quota is left: %s", text)
		status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 4))))
		assert.Equal(t, http.StatusTooManyRequests, status, text)
	})
}

// TestQuotasCountMetadataAndInvalidSamples: all that a request costs is its tenant's.
func TestQuotasCountMetadataAndInvalidSamples(t *testing.T) {
	metadata, invalid, empty := new(prompb.WriteRequest), writetest.Request(4, 2), writetest.Request(4, 2)
	for i := range 4 {
		metadata.Metadata = append(metadata.Metadata, prompb.MetricMetadata{MetricFamilyName: fmt.Sprint("m", i)})
		invalid.Timeseries[i].Labels[0].Name = ""
		empty.Timeseries[i].Samples = nil
	}
	for name, req := range map[string]*prompb.WriteRequest{"metadata": metadata, "invalid": invalid, "empty": empty} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, _ := newDoubleWithoutServer(t, func(c *Config) { c.Tenants.Default = tenant.Quota{SamplesPerSecond: .0001, Burst: 6} })
				d.post(t, writetest.Compress(writetest.Marshal(t, req)))
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(3, 2))))
				assert.Equal(t, http.StatusTooManyRequests, status, "two are left: %s", text)
				status, text, _ = d.post(t, writetest.Compress(writetest.Marshal(t, writetest.Request(2, 2))))
				assert.Equal(t, http.StatusNoContent, status, text)
			})
		})
	}
}

// TestMessagesTellTenantAndTime: consumers find them without reading the payload.
func TestMessagesTellTenantAndTime(t *testing.T) {
	for format, want := range map[string][]int64{
		"json": {3000, 1000, 2000, 4000}, "json-kafka-adapter": {3000, 1000, 4000}, "protobuf": {3000, 4000}, "packed": {4000},
	} {
		for _, first := range []string{"a", "z"} { // labels in order, which are copied, and not
			for _, name := range []string{"kitchen", ""} {
				req := writetest.OneSeries("__name__", "m", first, "1", "b", "2")
				req.Timeseries[0].Samples = []prompb.Sample{{Timestamp: 3000}, {Timestamp: 1000}}
				req.Timeseries[0].Exemplars = []prompb.Exemplar{{Timestamp: 2000}}
				late := writetest.OneSeries("__name__", "m").Timeseries[0]
				late.Samples[0].Timestamp = 4000
				req.Timeseries = append(req.Timeseries, late)
				d := newDouble(t, func(c *Config) { c.Format = format })
				status, text, _ := d.post(t, writetest.Compress(writetest.Marshal(t, req)), tenant.Header, name)
				require.Equal(t, http.StatusNoContent, status, text)
				var times []int64
				for _, r := range d.records {
					times = append(times, r.EventTime.UnixMilli())
					assert.Equal(t, tenant.Properties(name), r.Properties, format)
				}
				assert.Equal(t, want, times, format)
			}
		}
	}
	assert.Equal(t, map[string]string{"tenant": "kitchen"}, tenant.Properties("kitchen"))
}
