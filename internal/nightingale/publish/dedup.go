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
	// Entries is the maximum number of completed requests that are remembered. If there are more,
	// Nightingale evicts the oldest, mostly of the tenant with the most. Requests in flight are always
	// remembered. 0: no requests are remembered, and a request that was not acknowledged in time is
	// published again if the sender repeats it. Default 10000.
	Entries int `yaml:"entries"`
	// Window is the time for which a completed request is remembered. Default 10m.
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
	place  *list.Element         // in the tenant's list of completed attempts; nil while in flight
	expiry *time.Timer           // removes a completed attempt
	stored map[string]storedPart // by topic, the parts that attempts at this body have stored while others are missing
	done   chan struct{}         // closed when contents and err are final

	contents batch.Contents
	err      error // not nil: the sender must repeat the body
}

// Wait returns the attempt's result, or the error of ctx if ctx ends first.
//
//nolint:revive // err is a result here, not a failure of waiting
func (a *Attempt) Wait(ctx context.Context) (c batch.Contents, err error, complete bool) {
	select {
	case <-a.done:
	case <-ctx.Done():
		if !isClosed(a.done) {
			return c, ctx.Err(), false
		}
	}
	return a.contents, a.err, true
}

// State returns the state of the attempt for the metrics of repeated requests.
func (a *Attempt) State() string {
	if isClosed(a.done) {
		return "answered"
	}
	return "joined"
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

	mu        sync.Mutex
	known     map[BodyKey]*Attempt
	completed map[string]*list.List // completed *Attempt by tenant, the oldest first
	shares    *admission.Shares     // of completed attempts
}

// NewDedupCache returns an empty cache.
func NewDedupCache(cfg DedupConfig) *DedupCache {
	return &DedupCache{
		Entries: cfg.Entries, window: cfg.Window, known: make(map[BodyKey]*Attempt),
		completed: make(map[string]*list.List), shares: admission.NewShares(cfg.Entries),
	}
}

// claim returns the attempt at a body. If first is true, the caller must publish and complete it.
// Otherwise another request does.
func (c *DedupCache) claim(key BodyKey, body []byte) (a *Attempt, first bool) {
	a = &Attempt{done: make(chan struct{})}
	if c.Entries == 0 {
		return a, true
	}
	key.hash, key.length = xxhash.Sum64(body), len(body)
	c.mu.Lock()
	defer c.mu.Unlock()
	if earlier, ok := c.known[key]; ok {
		if earlier.place == nil || earlier.err == nil {
			return earlier, false
		}
		a.stored = earlier.stored
		c.remove(earlier)
	}
	a.key = key
	c.known[key] = a
	return a, true
}

// Complete ends an attempt. If the sender must repeat the body, the cache remembers the stored
// parts, if there are any.
func (c *DedupCache) Complete(a *Attempt, contents batch.Contents, d Delivered) {
	a.contents, a.err = contents, d.Err
	if d.Err == nil {
		a.stored = nil
	}
	if c.Entries > 0 {
		c.mu.Lock()
		if a.err != nil && len(a.stored) == 0 {
			delete(c.known, a.key)
		} else {
			c.add(a)
		}
		c.mu.Unlock()
	}
	close(a.done)
}

// add adds a completed attempt. If there are too many, it removes one. The caller holds c.mu.
func (c *DedupCache) add(a *Attempt) {
	tenant := a.key.Tenant
	if c.shares.Full() {
		oldest := c.completed[c.shares.EvictFrom(tenant)].Front()
		c.remove(oldest.Value.(*Attempt)) //nolint:errcheck // the list holds nothing else
	}
	own := c.completed[tenant]
	if own == nil {
		own = list.New()
		c.completed[tenant] = own
	}
	a.place = own.PushBack(a)
	c.shares.Add(tenant, 1)
	a.expiry = time.AfterFunc(c.window, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if a.place != nil {
			c.remove(a)
		}
	})
}

// remove removes a completed attempt. The caller holds c.mu.
func (c *DedupCache) remove(a *Attempt) {
	a.expiry.Stop()
	own := c.completed[a.key.Tenant]
	if own.Remove(a.place); own.Len() == 0 {
		delete(c.completed, a.key.Tenant)
	}
	c.shares.Add(a.key.Tenant, -1)
	a.place = nil
	delete(c.known, a.key)
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
		c.Cache.Complete(c.Attempt, batch.Contents{}, Delivered{Err: err})
	}
}
