package ingest

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
)

// limited has a tenant with ten events and 4096 bytes, and next to nothing per second.
func limited(t testing.TB, change func(*Config)) *double {
	t.Helper()
	return newDouble(t, func(c *Config) {
		c.Tenants = []TenantConfig{
			{Name: "shop", APIKeys: []secret.String{"shop-key"}, Quota: Quota{EventsPerSecond: .001, EventsBurst: 10, BytesPerSecond: 1, BytesBurst: 4096}},
			{Name: "audit", APIKeys: []secret.String{"audit-key"}, Quota: Quota{EventsPerSecond: .001, EventsBurst: 10}},
		}
		if change != nil {
			change(c)
		}
	})
}

// left is what a tenant's quota has.
func (d *double) left(name string) (events, bytes float64) {
	shop := d.senders.Load().tenants[name]
	if shop.bytes != nil {
		bytes = shop.bytes.Available(time.Now())
	}
	return shop.events.Available(time.Now()), bytes
}

func batchOf(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = anEvent("batch-"+strconv.Itoa(i), "")
	}
	return "[" + strings.Join(all, ",") + "]"
}

// TestOnlyWhatIsStoredIsCharged: not what is invalid, refused, over the quota, or could not be
// stored.
func TestOnlyWhatIsStoredIsCharged(t *testing.T) {
	d := limited(t, nil)
	post := func(contentType, body string) reply {
		return d.post(t, "orders", text(body), "Content-Type", contentType, "X-Api-Key", "shop-key")
	}
	size := float64(len(anEvent("A1", "")))
	require.Equal(t, http.StatusAccepted, d.send(t, "A1", "X-Api-Key", "shop-key").status)
	check := func(events int, used float64, why string) {
		t.Helper()
		left, bytes := d.left("shop")
		assert.InDelta(t, 10-events, left, .1, why)
		assert.InDelta(t, 4096-used, bytes, 10, why)
	}
	check(1, size, "stored")
	post(event.MediaType, `{`)
	post(event.MediaType, anEvent("A1", `,"data":{"a":1,"a":2}`))
	post(event.BatchMediaType, `[{},{}]`)
	d.post(t, "strict", text(`{"specversion":"1.0","id":"A1","source":"/s","type":"order","data":{}}`), "Content-Type", event.MediaType, "X-Api-Key", "shop-key")
	check(1, size, "invalid")

	d.set(func(messaging.Record) (error, bool) { return errBroken, true })
	assert.Equal(t, http.StatusServiceUnavailable, post(event.BatchMediaType, batchOf(5)).status)
	check(1, size, "not stored")
	d.set(nil)

	r := post(event.BatchMediaType, batchOf(10))
	assert.Equal(t, http.StatusTooManyRequests, r.status)
	assert.Equal(t, "tenant_quota", r.problem.Reason)
	assert.Contains(t, r.problem.Detail, "0.001 events per second")
	check(1, size, "over the quota")
	after, err := strconv.Atoi(r.header.Get("Retry-After"))
	require.NoError(t, err)
	assert.InDelta(t, 1000, after, 5)

	r = post(event.MediaType, anEvent("A1", `,"data":"`+strings.Repeat("x", 4050)+`"`))
	assert.Equal(t, http.StatusTooManyRequests, r.status)
	assert.Contains(t, r.problem.Detail, "1 bytes per second")
	check(1, size, "over the quota of bytes gives the event back")

	r = post(event.BatchMediaType, `[{},`+batchOf(3)[1:])
	assert.Equal(t, http.StatusUnprocessableEntity, r.status)
	left, _ := d.left("shop")
	assert.InDelta(t, 6, left, .1, "the valid ones")
	assert.Equal(t, http.StatusAccepted, post(event.BatchMediaType, batchOf(6)).status)
	assert.Equal(t, http.StatusTooManyRequests, d.send(t, "A1", "X-Api-Key", "shop-key").status)
	assert.Equal(t, http.StatusAccepted, d.send(t, "A1", "X-Api-Key", "audit-key").status, "others are not touched")
	assert.InDelta(t, 10+1+1, testutil.ToFloat64(d.metrics.events.throttled), 0)
}

// TestEventsOfUnknownOutcomeAreChargedWhenItIsKnown: a sender that gave up has its quota back when
// they were not stored.
func TestEventsOfUnknownOutcomeAreChargedWhenItIsKnown(t *testing.T) {
	t.Parallel()
	for outcome, want := range map[error]float64{nil: 7, errBroken: 10} {
		d := limited(t, func(c *Config) { c.RequestTimeout = time.Second })
		d.set(func(messaging.Record) (error, bool) { return nil, false })
		r := d.post(t, "orders", text(batchOf(3)), "Content-Type", event.BatchMediaType, "X-Api-Key", "shop-key")
		assert.Equal(t, http.StatusServiceUnavailable, r.status)
		assert.Equal(t, []result{
			{Status: 503, Reason: "timeout", Detail: r.problem.Results[0].Detail}, {Status: 503, Reason: "timeout", Detail: r.problem.Results[1].Detail},
			{Status: 503, Reason: "timeout", Detail: r.problem.Results[2].Detail},
		}, r.problem.Results)
		left, _ := d.left("shop")
		assert.InDelta(t, 7, left, .1, "while they may be stored")
		d.set(nil)
		d.acknowledge(outcome)
		left, _ = d.left("shop")
		assert.InDelta(t, want, left, .1)
		for range 5 { // while Pulsar is unavailable nothing is charged
			d.topicOf("orders").suspended.NoteLate()
		}
		require.Eventually(t, func() bool { return d.Check(t.Context()) == nil }, await.Patience, time.Millisecond)
	}
}

func (d *double) topicOf(bus string) *busTopic { return d.buses.of(d.store.Snapshot().Bus(bus)).topic }

// TestAChangeOfTenants keeps what quotas have left, and is in force at once.
func TestAChangeOfTenants(t *testing.T) {
	d := limited(t, nil)
	assert.Equal(t, http.StatusAccepted, d.post(t, "orders", text(batchOf(8)), "Content-Type", event.BatchMediaType, "X-Api-Key", "audit-key").status)
	cfg := DefaultConfig()
	cfg.Tenants = []TenantConfig{{Name: "audit", Buses: []string{"*"}, APIKeys: []secret.String{"new-key"}, Quota: Quota{EventsPerSecond: .001, EventsBurst: 1000}}}
	require.NoError(t, d.Change(cfg))
	assert.Equal(t, http.StatusUnauthorized, d.send(t, "A1", "X-Api-Key", "audit-key").status)
	assert.Equal(t, http.StatusTooManyRequests, d.post(t, "orders", text(batchOf(3)), "Content-Type", event.BatchMediaType, "X-Api-Key", "new-key").status)
	assert.Equal(t, http.StatusAccepted, d.post(t, "orders", text(batchOf(2)), "Content-Type", event.BatchMediaType, "X-Api-Key", "new-key").status)
	cfg.Tenants[0].APIKeyFile = "/none"
	require.Error(t, d.Change(cfg))
	assert.Equal(t, http.StatusUnauthorized, d.send(t, "A1", "X-Api-Key", "audit-key").status, "a fault changes nothing")
}

// TestAChangeOfTenantsWhileEventsAreInFlight: what is not stored is given back to the quota that is
// in force then.
func TestAChangeOfTenantsWhileEventsAreInFlight(t *testing.T) {
	t.Parallel()
	var cfg Config
	d := limited(t, func(c *Config) { c.RequestTimeout = time.Second; cfg = *c })
	d.set(func(messaging.Record) (error, bool) { return nil, false })
	r := d.post(t, "orders", text(batchOf(3)), "Content-Type", event.BatchMediaType, "X-Api-Key", "shop-key")
	assert.Equal(t, http.StatusServiceUnavailable, r.status)
	require.NoError(t, d.Change(cfg))
	left, _ := d.left("shop")
	assert.InDelta(t, 7, left, .1)
	d.set(nil)
	d.acknowledge(errBroken)
	left, bytes := d.left("shop")
	assert.InDelta(t, 10, left, .1)
	assert.InDelta(t, 4096, bytes, 10)
}
