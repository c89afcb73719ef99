package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
)

// checkTimeout bounds one readiness check.
const checkTimeout = 2 * time.Second

// phase is where the process is in its life.
type phase string

const (
	starting phase = "starting"
	ready    phase = "ready"
	notReady phase = "not ready" // shown when running with a failing check
	draining phase = "draining"
)

// checkSet answers /-/ready.
type checkSet struct {
	mu     sync.Mutex
	phase  phase
	checks []*check
}

// A check is a readiness check. Requests that come while it runs share its result: a check that
// hangs holds one goroutine, not one for each request.
type check struct {
	name  string
	probe func(ctx context.Context) error

	mu      sync.Mutex
	current *probing
}

type probing struct {
	done chan struct{}
	err  error // valid once done is closed
}

// set moves to a phase, never out of draining.
func (h *checkSet) set(p phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != draining {
		h.phase = p
	}
}

func (h *checkSet) add(name string, probe func(ctx context.Context) error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, &check{name: name, probe: probe})
}

// readiness is the body of /-/ready.
type readiness struct {
	Status phase                  `json:"status"`
	Checks map[string]checkResult `json:"checks"`
}

type checkResult struct {
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// ServeHTTP writes the state and the result of every check, with status 200 only when the process
// is ready and all of them pass.
func (h *checkSet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := h.read(req.Context())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if body.Status != ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // fails only when the client has closed the connection
}

// read returns the state, in any phase: while the process starts, the checks show the parts that are
// not ready yet.
func (h *checkSet) read(ctx context.Context) readiness {
	errs := h.probe(ctx)
	h.mu.Lock()
	body := readiness{Status: h.phase, Checks: make(map[string]checkResult, len(errs))} // the phase may have moved on meanwhile
	h.mu.Unlock()
	for name, err := range errs {
		result := checkResult{OK: err == nil}
		if err != nil {
			result.Error = err.Error()
			if body.Status == ready {
				body.Status = notReady
			}
		}
		body.Checks[name] = result
	}
	return body
}

// probe runs all checks at the same time, and returns their results.
func (h *checkSet) probe(ctx context.Context) map[string]error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	h.mu.Lock()
	checks := h.checks
	h.mu.Unlock()

	results := make([]error, len(checks))
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { results[i] = c.run(ctx) })
	}
	wg.Wait()

	byName := make(map[string]error, len(checks))
	for i, c := range checks {
		byName[c.name] = results[i]
	}
	return byName
}

// watchEvery is how often failing checks are logged.
const watchEvery = 5 * time.Second

// watch logs which checks fail, until ctx ends: at once, each minute while they fail, and when they
// pass again. So the log shows an outage even if nothing asks for readiness.
func (h *checkSet) watch(ctx context.Context, log *zap.Logger) {
	states := map[string]*health.State{}
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		errs := h.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		for name, err := range errs {
			if states[name] == nil {
				states[name] = health.New(log.With(zap.String("check", name)))
			}
			states[name].Set(err)
		}
	}
}

func (c *check) run(ctx context.Context) error {
	c.mu.Lock()
	if c.current == nil {
		p := &probing{done: make(chan struct{})}
		c.current = p
		go func() {
			// Not the request's context: other requests may wait for this result after its client
			// has gone.
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
			defer cancel()
			p.err = Protect(func() error { return c.probe(ctx) })
			c.mu.Lock()
			c.current = nil
			c.mu.Unlock()
			close(p.done)
		}()
	}
	p := c.current
	c.mu.Unlock()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		return errors.New("no answer within " + checkTimeout.String())
	}
}
