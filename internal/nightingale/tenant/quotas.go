package tenant

import (
	"errors"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Config bounds the samples that tenants may send. The header X-Scope-OrgID names the tenant of a
// request. Requests without it belong to a tenant with the empty name.
type Config struct {
	// Default is the quota of each tenant without an override. If more than 10000 such tenants send
	// at the same time, the others share one quota. Default: no bound.
	Default Quota `yaml:"default"`
	// Overrides are quotas by tenant. Default: none.
	Overrides map[string]Quota `yaml:"overrides"`
	// InFlightShare is the share of limits.in_flight_bytes that the requests of one tenant may use,
	// above 0 and up to 1. Beyond it: 503. A single request may use all of it. Default 0.75.
	InFlightShare float64 `yaml:"in_flight_share"`
}

// Quota is a rate of samples. Beyond it: 429, the only use of that status. Prometheus drops
// requests that get 429, unless retry_on_http_429 is set.
type Quota struct {
	// SamplesPerSecond is the rate of samples of all kinds, valid or not. A metadata entry, and a
	// series without samples, count as one. 0: no bound.
	SamplesPerSecond float64 `yaml:"samples_per_second"`
	// Burst is the number of samples that may arrive at once. 0: the rate times ten seconds.
	Burst int `yaml:"burst"`
}

// Validate returns every fault of the quota.
func (q Quota) Validate() error {
	return errors.Join(
		config.Require(q.SamplesPerSecond >= 0, "samples_per_second", "must be >= 0, got %g", q.SamplesPerSecond),
		config.Require(q.Burst >= 0, "burst", "must be >= 0, got %d", q.Burst))
}

// Validate returns every fault of the tenants' quotas.
func (c Config) Validate() error {
	errs := []error{config.Require(c.InFlightShare > 0 && c.InFlightShare <= 1,
		"in_flight_share", "must be above 0 and at most 1, got %g", c.InFlightShare)}
	for name, quota := range c.Overrides {
		if err := errors.Join(Check(name), quota.Validate()); err != nil {
			errs = append(errs, config.Fault("overrides", "%q: %s", name, strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	}
	return errors.Join(errs...)
}

func (q Quota) bucket(now time.Time) *admission.Bucket {
	return admission.NewBucket(q.SamplesPerSecond, q.Burst, now)
}

// Quotas holds the tenants' buckets. A nil bucket has no bound. Senders can invent names, so the
// number of buckets is bounded.
type Quotas struct {
	standard   Quota
	overrides  map[string]*admission.Bucket // never changes
	shared     *admission.Bucket            // of tenants beyond maxTracked
	maxTracked int

	mu      sync.Mutex
	tracked map[string]*admission.Bucket // with the standard quota
	swept   time.Time
}

// NewQuotas returns quotas with full bursts.
func NewQuotas(cfg Config) *Quotas {
	now := time.Now()
	q := &Quotas{
		standard: cfg.Default, overrides: make(map[string]*admission.Bucket), shared: cfg.Default.bucket(now),
		maxTracked: 10_000, tracked: make(map[string]*admission.Bucket),
	}
	for name, quota := range cfg.Overrides {
		q.overrides[name] = quota.bucket(now)
	}
	return q
}

// Admit refuses n samples if they exceed the tenant's quota. It does not charge the quota: a
// request that gets 503 is repeated, and must not count twice. A request with more samples than the
// burst passes if the quota is completely unused.
func (q *Quotas) Admit(tenant string, n int) error {
	now := time.Now()
	b := q.bucket(tenant, now)
	if b == nil || n == 0 {
		return nil
	}
	wait := b.Wait(now, n)
	if wait == 0 {
		return nil
	}
	return &refusal.Error{
		Status: http.StatusTooManyRequests, Reason: "tenant_quota", RetryAfter: max(wait.Round(time.Second), time.Second),
		Text: "the tenant's quota of " + strconv.FormatFloat(b.Rate(), 'g', -1, 64) + " samples per second is used up",
	}
}

// Charge subtracts n written samples from the tenant's quota. Requests that were admitted at the
// same time may make the quota negative.
func (q *Quotas) Charge(tenant string, n int) {
	now := time.Now()
	if b := q.bucket(tenant, now); b != nil {
		b.Charge(now, n)
	}
}

func (q *Quotas) bucket(tenant string, now time.Time) *admission.Bucket {
	if b, overridden := q.overrides[tenant]; overridden || q.shared == nil {
		return b
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if b := q.tracked[tenant]; b != nil {
		return b
	}
	if len(q.tracked) >= q.maxTracked && now.Sub(q.swept) >= time.Second {
		q.swept = now
		maps.DeleteFunc(q.tracked, func(_ string, b *admission.Bucket) bool { return b.Full(now) })
	}
	if len(q.tracked) >= q.maxTracked {
		return q.shared
	}
	b := q.standard.bucket(now)
	q.tracked[tenant] = b
	return b
}
