package sonic

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// noEviction is the only maxmemory-policy with which Redis keeps what it is given.
const noEviction = "noeviction"

// evictionOf says that a Redis drops keys by itself, with the reply of INFO, section memory; empty: it does not, or that is not known.
func evictionOf(info map[string]string) string {
	if policy := info["maxmemory_policy"]; policy != "" && policy != noEviction {
		return fmt.Sprintf("its maxmemory-policy is %s, which drops keys, Sonic's own too: set it to %s", policy, noEviction)
	}
	return ""
}

// eviction says when Redis begins to drop keys while Sonic runs: its configuration was changed, or a replica with another one was promoted. It is safe for
// concurrent use.
type eviction struct {
	log *zap.Logger

	mu  sync.Mutex
	now string // see evictionOf
}

func newEviction(log *zap.Logger) *eviction { return &eviction{log: log.Named("redis")} }

// note keeps what the matter is, and says it once.
func (e *eviction) note(problem string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch before := e.now; {
	case before == problem:
		return
	case problem == "":
		e.log.Info("Redis drops no keys any more: what it has dropped is missing in this zone, see sonic -check")
	default:
		e.log.Error("Redis drops keys: zones do not stay equal", zap.String("problem", problem))
	}
	e.now = problem
}

// holds reports whether Redis drops keys.
func (e *eviction) holds() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.now != ""
}
