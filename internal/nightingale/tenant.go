package nightingale

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// tenantHeader names the tenant of a request, as in Mimir, Loki and others.
const tenantHeader = "X-Scope-OrgID"

const maxTenant = 150 // bytes

// Tenants bounds the samples that tenants may send. The header X-Scope-OrgID names the tenant of a
// request. Requests without it belong to a tenant with the empty name.
type Tenants struct {
	// Default is the quota of each tenant without an override. Default: no bound.
	Default Quota `yaml:"default"`
	// Overrides are quotas by tenant. Default: none.
	Overrides map[string]Quota `yaml:"overrides"`
	// Tracked is for how many tenants with the default quota Nightingale keeps a separate count. If
	// more tenants send at the same time, the others share one quota. Default 10000.
	Tracked int `yaml:"tracked"`
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
	// Burst is how many samples may arrive at once. 0: as many as in ten seconds at the rate.
	Burst int `yaml:"burst"`
}

// Validate returns every fault of the quota.
func (q Quota) Validate() error {
	var errs []error
	if q.SamplesPerSecond < 0 || math.IsNaN(q.SamplesPerSecond) || math.IsInf(q.SamplesPerSecond, 0) {
		errs = append(errs, config.Fault("samples_per_second", "must be >= 0, got %g", q.SamplesPerSecond))
	}
	if q.Burst < 0 {
		errs = append(errs, config.Fault("burst", "must be >= 0, got %d", q.Burst))
	}
	return errors.Join(errs...)
}

func (q Quota) bucket(now time.Time) *admission.Bucket {
	if q.SamplesPerSecond == 0 {
		return nil
	}
	burst := q.Burst
	if burst == 0 {
		burst = int(min(math.Ceil(10*q.SamplesPerSecond), math.MaxInt32))
	}
	return admission.NewBucket(q.SamplesPerSecond, burst, now)
}

// Validate returns every fault of the tenants' quotas.
func (t Tenants) Validate() error {
	var errs []error
	errs = append(errs, config.CheckPositive("tracked", t.Tracked))
	if !(t.InFlightShare > 0 && t.InFlightShare <= 1) { // false for NaN, too
		errs = append(errs, config.Fault("in_flight_share", "must be above 0 and at most 1, got %g", t.InFlightShare))
	}
	for name, quota := range t.Overrides {
		if err := checkTenant(name); err != nil {
			errs = append(errs, config.Fault("overrides", "%q: %v", name, err))
		}
		if err := quota.Validate(); err != nil {
			errs = append(errs, config.Fault("overrides", "%q: %s", name, strings.ReplaceAll(err.Error(), "\n", "; ")))
		}
	}
	return errors.Join(errs...)
}

// tenantOf returns the tenant of a request, empty if the request names none.
func tenantOf(header http.Header) (string, error) {
	values := header[http.CanonicalHeaderKey(tenantHeader)]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", refusal.Invalid("tenant", "%s is given %d times", tenantHeader, len(values))
	}
	if values[0] == "" {
		return "", nil
	}
	if err := checkTenant(values[0]); err != nil {
		return "", refusal.Invalid("tenant", "%s: %v", tenantHeader, err)
	}
	return strings.Clone(values[0]), nil // tables keep it for longer than the request
}

// tenantProperty is the message property that holds the tenant.
const tenantProperty = "tenant"

// propertiesOf returns the properties of a tenant's messages, nil without a tenant.
func propertiesOf(tenant string) map[string]string {
	if tenant == "" {
		return nil
	}
	return map[string]string{tenantProperty: tenant}
}

// checkTenant accepts the same names as Mimir.
func checkTenant(name string) error {
	if len(name) > maxTenant {
		return fmt.Errorf("a tenant's name has at most %d bytes, this one has %d", maxTenant, len(name))
	}
	if name == "." || name == ".." {
		return fmt.Errorf("%q cannot be a tenant's name", name)
	}
	for i := range len(name) {
		switch c := name[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("!-_.*'()", c) >= 0:
		default:
			return errors.New("a tenant's name consists of letters, digits and !-_.*'()")
		}
	}
	return nil
}

// quotas holds the tenants' buckets.
type quotas struct {
	cfg       Tenants
	overrides map[string]*admission.Bucket // never changes; a nil bucket has no bound
	rest      *admission.Bucket            // shared by tenants beyond Tracked; nil: no bound

	mu      sync.Mutex
	tracked map[string]*admission.Bucket
	swept   time.Time
}

func newQuotas(cfg Tenants) *quotas {
	now := time.Now()
	q := &quotas{cfg: cfg, overrides: make(map[string]*admission.Bucket), rest: cfg.Default.bucket(now), tracked: make(map[string]*admission.Bucket)}
	for name, quota := range cfg.Overrides {
		q.overrides[name] = quota.bucket(now)
	}
	return q
}

// admit refuses n samples if they exceed the tenant's quota. It does not charge the quota: a
// request that gets 503 is repeated, and must not count twice. A request with more samples than the
// burst passes if the quota is completely unused.
func (q *quotas) admit(tenant string, n int) error {
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

// charge subtracts n written samples from the tenant's quota. Requests that were admitted at the
// same time may make the quota negative.
func (q *quotas) charge(tenant string, n int) {
	now := time.Now()
	if b := q.bucket(tenant, now); b != nil && n > 0 {
		b.Charge(now, n)
	}
}

// bucket returns the tenant's bucket, nil if the tenant has no bound.
func (q *quotas) bucket(tenant string, now time.Time) *admission.Bucket {
	if b, own := q.overrides[tenant]; own {
		return b
	}
	if q.rest == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	b, known := q.tracked[tenant]
	if known {
		return b
	}
	if len(q.tracked) >= q.cfg.Tracked && now.Sub(q.swept) >= time.Second {
		q.swept = now
		maps.DeleteFunc(q.tracked, func(_ string, b *admission.Bucket) bool { return b.Full(now) })
	}
	if len(q.tracked) >= q.cfg.Tracked {
		return q.rest
	}
	b = q.cfg.Default.bucket(now)
	q.tracked[strings.Clone(tenant)] = b
	return b
}
