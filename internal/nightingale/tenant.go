package nightingale

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/aviaryhq/aviary/internal/config"
)

// tenantHeader names the tenant of a request, as Mimir, Loki and others have it.
const tenantHeader = "X-Scope-OrgID"

const maxTenant = 150 // bytes

// Tenants bounds the samples that tenants may send. A tenant is named by the header
// X-Scope-OrgID; requests without it are of a tenant with the empty name.
type Tenants struct {
	// Default is the quota of each tenant that has none of its own. Default: no bound.
	Default Quota `yaml:"default"`
	// Overrides are quotas by tenant. Default: none.
	Overrides map[string]Quota `yaml:"overrides"`
	// Tracked bounds the tenants whose use of the default quota is followed. While more than that send at the same time, the others share one
	// quota. Default 10000.
	Tracked int `yaml:"tracked"`
}

// Quota is a rate of samples. Past it: 429, the only use of that status. Prometheus drops what is answered 429 unless retry_on_http_429 is set.
type Quota struct {
	// SamplesPerSecond of all kinds. 0: no bound.
	SamplesPerSecond float64 `yaml:"samples_per_second"`
	// Burst is how many samples may come at once. 0: those of ten seconds.
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

func (q Quota) limiter() *rate.Limiter {
	if q.SamplesPerSecond == 0 {
		return nil
	}
	burst := q.Burst
	if burst == 0 {
		burst = int(min(math.Ceil(10*q.SamplesPerSecond), math.MaxInt32))
	}
	return rate.NewLimiter(rate.Limit(q.SamplesPerSecond), burst)
}

// Validate returns every fault of the tenants' quotas.
func (t Tenants) Validate() error {
	var errs []error
	if t.Tracked < 1 {
		errs = append(errs, config.Fault("tracked", "must be > 0, got %d", t.Tracked))
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

// tenantOf returns the tenant of a request, empty when it names none.
func tenantOf(header http.Header) (string, error) {
	values := header[http.CanonicalHeaderKey(tenantHeader)]
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", invalid("tenant", "%s is given %d times", tenantHeader, len(values))
	}
	if values[0] == "" {
		return "", nil
	}
	if err := checkTenant(values[0]); err != nil {
		return "", invalid("tenant", "%s: %v", tenantHeader, err)
	}
	return values[0], nil
}

// checkTenant takes the names that Mimir takes.
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

// quotas holds the tenants' limiters.
type quotas struct {
	cfg       Tenants
	overrides map[string]*rate.Limiter // read only; nil for one without a bound
	rest      *rate.Limiter            // of those that there is no room for

	mu      sync.Mutex
	tracked map[string]*rate.Limiter
	swept   time.Time
}

func newQuotas(cfg Tenants) *quotas {
	q := &quotas{cfg: cfg, overrides: make(map[string]*rate.Limiter), rest: cfg.Default.limiter(), tracked: make(map[string]*rate.Limiter)}
	for name, quota := range cfg.Overrides {
		q.overrides[name] = quota.limiter()
	}
	return q
}

// admit charges a tenant for n samples, or refuses them all. A request with more
// samples than the burst passes when the burst is all there: the tenant owes the
// rest.
func (q *quotas) admit(tenant string, n int) error {
	limiter := q.limiter(tenant, time.Now())
	if limiter == nil || n == 0 {
		return nil
	}
	now := time.Now()
	first := limiter.ReserveN(now, min(n, limiter.Burst()))
	if wait := first.DelayFrom(now); wait > 0 {
		first.CancelAt(now)
		return &refusal{
			status: http.StatusTooManyRequests, reason: "tenant_quota", retryAfter: max(wait.Round(time.Second), time.Second),
			text: "the tenant's quota of " + strconv.FormatFloat(float64(limiter.Limit()), 'g', -1, 64) + " samples per second is used up",
		}
	}
	for left := n - limiter.Burst(); left > 0; left -= limiter.Burst() {
		limiter.ReserveN(now, min(left, limiter.Burst()))
	}
	return nil
}

// limiter returns the tenant's limiter, nil when it has no bound.
func (q *quotas) limiter(tenant string, now time.Time) *rate.Limiter {
	if limiter, own := q.overrides[tenant]; own {
		return limiter
	}
	if q.rest == nil {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	limiter, known := q.tracked[tenant]
	if known {
		return limiter
	}
	if len(q.tracked) >= q.cfg.Tracked && now.Sub(q.swept) >= time.Second {
		q.swept = now
		// Forgetting a tenant whose burst is all there makes no difference to it.
		for name, l := range q.tracked {
			if l.TokensAt(now) >= float64(l.Burst()) {
				delete(q.tracked, name)
			}
		}
	}
	if len(q.tracked) >= q.cfg.Tracked {
		return q.rest
	}
	limiter = q.cfg.Default.limiter()
	q.tracked[strings.Clone(tenant)] = limiter
	return limiter
}
