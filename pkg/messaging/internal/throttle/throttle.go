// Package throttle suppresses repeated log lines. It imports no other package of this repository.
package throttle

import (
	"slices"
	"sync"
	"time"
)

const (
	every       = time.Second
	maxSubjects = 256
)

// Throttle lets one line pass per second and counts those that it suppressed. The zero Throttle
// is ready to use. It is safe for concurrent use.
type Throttle struct {
	mu         sync.Mutex
	last       time.Time
	suppressed int
}

// Allow reports whether a line may be logged now, and how many were suppressed since the last
// one that passed.
func (t *Throttle) Allow() (suppressed int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if now.Sub(t.last) < every {
		t.suppressed++
		return 0, false
	}
	suppressed = t.suppressed
	t.last, t.suppressed = now, 0
	return suppressed, true
}

// Changes lets a line about a subject pass when it differs from the line before it. It remembers
// 256 subjects and forgets the oldest. The zero Changes is ready to use. It is safe for concurrent
// use.
type Changes struct {
	mu    sync.Mutex
	said  map[string]string
	order []string // of said's keys, the oldest first
}

// Allow reports whether text about subject may be logged now, and remembers it.
func (c *Changes) Allow(subject, text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, known := c.said[subject]
	if known && last == text {
		return false
	}
	if c.said == nil {
		c.said = make(map[string]string)
	}
	c.said[subject] = text
	if known {
		return true
	}
	if len(c.order) == maxSubjects {
		delete(c.said, c.order[0])
		c.order = slices.Delete(c.order, 0, 1)
	}
	c.order = append(c.order, subject)
	return true
}

// Forget lets the next line about subject pass. It reports whether there was a line before.
func (c *Changes) Forget(subject string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, known := c.said[subject]
	delete(c.said, subject)
	c.order = slices.DeleteFunc(c.order, func(s string) bool { return s == subject })
	return known
}
