package publish

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// DedupConfig configures the recognition of requests with exactly the same body as an earlier one
// of the same tenant. Such a request gets the answer of the earlier one, and is not published
// again.
type DedupConfig struct {
	// Entries is how many completed requests are remembered. If there are more, Nightingale evicts the
	// oldest, mostly of the tenant with the most. Requests in flight are always remembered. 0: no
	// requests are remembered, and a request that was not acknowledged in time is published again if
	// the sender repeats it. Default 10000.
	Entries int `yaml:"entries"`
	// Window is how long completed requests are remembered. Default 10m.
	Window time.Duration `yaml:"window"`
}

// Validate returns every fault of the keys.
func (d DedupConfig) Validate() error {
	var errs []error
	if d.Entries < 0 {
		errs = append(errs, config.Fault("entries", "must be >= 0, got %d", d.Entries))
	}
	errs = append(errs, config.CheckPositive("window", d.Window))
	return errors.Join(errs...)
}

// BodyKey identifies a body by tenant, protocol, a hash of 64 bits and length. Senders repeat a
// request byte for byte.
type BodyKey struct {
	Tenant, Message string
	hash            uint64
	length          int
}

// Attempt is an attempt to publish a body. Requests with the same body wait for the same attempt.
type Attempt struct {
	key    BodyKey
	place  *list.Element // in the list of completed attempts; nil while in flight
	own    *list.Element // in that of the tenant
	ended  time.Time     // when it was completed
	failed bool          // it is completed, and the sender must repeat the body
	stored storedParts   // what earlier attempts at this body have stored and, once completed, this one
	done   chan struct{} // closed when contents and err are final

	contents batch.Contents
	err      error
}

// Wait returns the attempt's result, or the error of ctx if ctx ends first.
func (a *Attempt) Wait(ctx context.Context) (c batch.Contents, err error, complete bool) { //nolint:revive // err is a result here, not a failure of waiting
	select {
	case <-a.done:
		return a.contents, a.err, true
	default:
	}
	select {
	case <-a.done:
		return a.contents, a.err, true
	case <-ctx.Done():
		return c, ctx.Err(), false
	}
}

// State returns the state of the attempt for the metrics of repeated requests.
func (a *Attempt) State() string {
	select {
	case <-a.done:
		return "answered"
	default:
		return "joined"
	}
}

// DedupCache remembers attempts in flight and recent completed ones, so that a repeated body is not
// published again. If an attempt has failed, a repetition is published, except for the parts that
// are already stored.
//
// The number and the age of completed attempts are bounded. If there are too many, the oldest of
// one tenant is removed, see admission.Shares. Attempts in flight are never removed: the bound of
// bytes in flight limits them.
type DedupCache struct {
	Entries int
	window  time.Duration

	mu      sync.Mutex
	known   map[BodyKey]*Attempt
	order   list.List             // of completed *Attempt, the oldest first
	tenants map[string]*list.List // the same by tenant
	shares  *admission.Shares     // of completed attempts
}

// NewDedupCache returns an empty cache.
func NewDedupCache(cfg DedupConfig) *DedupCache {
	return &DedupCache{
		Entries: cfg.Entries, window: cfg.Window, known: make(map[BodyKey]*Attempt),
		tenants: make(map[string]*list.List), shares: admission.NewShares(cfg.Entries),
	}
}

// claim returns the attempt at a body. If first is true, the caller must publish and complete it.
// Otherwise another request does.
func (cache *DedupCache) claim(key BodyKey, body []byte) (a *Attempt, first bool) {
	if cache.Entries == 0 {
		return &Attempt{done: make(chan struct{})}, true
	}
	key.hash, key.length = xxhash.Sum64(body), len(body)
	now := time.Now()
	cache.mu.Lock()
	defer cache.mu.Unlock()
	var stored storedParts
	if a, ok := cache.known[key]; ok {
		switch {
		case cache.stale(a, now):
		case a.failed:
			stored = a.stored
		default:
			return a, false
		}
		cache.remove(a)
	}
	cache.removeStale(now)
	a = &Attempt{key: key, stored: stored, done: make(chan struct{})}
	cache.known[key] = a
	return a, true
}

// removeStale removes completed attempts that are too old. The caller holds cache.mu.
func (cache *DedupCache) removeStale(now time.Time) {
	for old := oldest(&cache.order); old != nil && cache.stale(old, now); old = oldest(&cache.order) {
		cache.remove(old)
	}
}

// oldest returns the first attempt of a list, nil if the list is empty.
func oldest(l *list.List) *Attempt {
	first := l.Front()
	if first == nil {
		return nil
	}
	return first.Value.(*Attempt) //nolint:errcheck,forcetypeassert // the list holds nothing else
}

// stale reports whether a completed attempt is too old. An attempt in flight never is.
func (cache *DedupCache) stale(a *Attempt, now time.Time) bool {
	return a.place != nil && now.Sub(a.ended) > cache.window
}

// remove removes an attempt. The caller holds cache.mu.
func (cache *DedupCache) remove(a *Attempt) {
	if a.place != nil {
		cache.order.Remove(a.place)
		own := cache.tenants[a.key.Tenant]
		if own.Remove(a.own); own.Len() == 0 {
			delete(cache.tenants, a.key.Tenant)
		}
		cache.shares.Add(a.key.Tenant, -1)
		a.place, a.own = nil, nil
	}
	delete(cache.known, a.key)
}

// push adds a completed attempt. If there are too many, it evicts one. The caller holds cache.mu.
func (cache *DedupCache) push(a *Attempt) {
	tenant := a.key.Tenant
	if cache.removeStale(a.ended); cache.shares.Full() {
		cache.remove(oldest(cache.tenants[cache.shares.EvictFrom(tenant)]))
	}
	own := cache.tenants[tenant]
	if own == nil {
		own = list.New()
		cache.tenants[tenant] = own
	}
	a.place, a.own = cache.order.PushBack(a), own.PushBack(a)
	cache.shares.Add(tenant, 1)
}

// Complete ends an attempt. If the sender must repeat the body, the cache remembers the stored
// parts, if there are any.
func (cache *DedupCache) Complete(a *Attempt, c batch.Contents, d Delivered) {
	if cache.Entries > 0 {
		cache.keep(a, d)
	}
	a.contents, a.err = c, d.Err
	close(a.done)
}

func (cache *DedupCache) keep(a *Attempt, d Delivered) {
	cache.mu.Lock()
	defer cache.mu.Unlock()
	a.failed = d.Err != nil
	if a.failed && len(d.stored) == 0 {
		cache.remove(a)
		return
	}
	a.stored, a.ended = d.stored, time.Now()
	cache.push(a)
}

// Claim is a request's claim to an attempt, until the publishing stage takes it over.
type Claim struct {
	Cache *DedupCache
	Key   BodyKey
	*Attempt
	Owned bool // this request must complete the attempt
}

// Acquire claims the body and reports whether this request has to publish it.
func (c *Claim) Acquire(body []byte) bool {
	c.Attempt, c.Owned = c.Cache.claim(c.Key, body)
	return c.Owned
}

// Abort completes an attempt that was not published.
func (c *Claim) Abort(err error) {
	if c.Owned {
		c.Owned = false
		c.Cache.Complete(c.Attempt, batch.Contents{}, Delivered{Err: err, stored: c.stored})
	}
}
