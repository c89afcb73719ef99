package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync"
	"time"
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

// health answers /-/ready.
type health struct {
	mu     sync.Mutex
	phase  phase
	checks []*check
}

// A check is a readiness check. Requests that come while it runs share its result, so that a check that hangs holds one goroutine and not one
// per request.
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
func (h *health) set(p phase) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != draining {
		h.phase = p
	}
}

func (h *health) add(name string, probe func(ctx context.Context) error) {
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

// ServeHTTP writes the state and the result of every check, with status 200 only when the process is ready and all of them pass.
func (h *health) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body := h.read(req.Context())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	if body.Status != ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(body) // fails only when the client is gone
}

// read runs the checks, all at once, whatever the phase: while starting they tell what is waited for.
func (h *health) read(ctx context.Context) readiness {
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

	h.mu.Lock()
	body := readiness{Status: h.phase, Checks: make(map[string]checkResult, len(checks))} // the phase may have moved on meanwhile
	h.mu.Unlock()
	for i, c := range checks {
		result := checkResult{OK: results[i] == nil}
		if !result.OK {
			result.Error = results[i].Error()
			if body.Status == ready {
				body.Status = notReady
			}
		}
		body.Checks[c.name] = result
	}
	return body
}

func (c *check) run(ctx context.Context) error {
	c.mu.Lock()
	if c.current == nil {
		p := &probing{done: make(chan struct{})}
		c.current = p
		go func() {
			// Not the request's context: others may be waiting for this result when its client has gone.
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
