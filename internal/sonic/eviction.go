package sonic

import (
	"fmt"
	"sync"

	"go.uber.org/zap"
)

// noEviction is the only maxmemory-policy with which Redis never drops keys by itself.
const noEviction = "noeviction"

// evictionProblem returns a problem if Redis drops keys by itself, according to the memory section
// of INFO. It returns "" if Redis does not, or if that is unknown.
func evictionProblem(info map[string]string) string {
	if policy := info["maxmemory_policy"]; policy != "" && policy != noEviction {
		return fmt.Sprintf("its maxmemory-policy is %s, which drops keys, Sonic's own too: set it to %s", policy, noEviction)
	}
	return ""
}

// eviction logs when Redis begins to drop keys while Sonic runs: after a change of its
// configuration, or because a promoted replica has another configuration. It is safe for concurrent
// use.
type eviction struct {
	log *zap.Logger

	mu      sync.Mutex
	problem string // see evictionProblem
}

func newEviction(log *zap.Logger) *eviction { return &eviction{log: log.Named("redis")} }

// update stores the present problem, and logs each change once.
func (e *eviction) update(problem string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch before := e.problem; {
	case before == problem:
		return
	case problem == "":
		e.log.Info("Redis no longer evicts keys: the evicted keys are missing in this zone, see sonic -check")
	default:
		e.log.Error("Redis evicts keys: zones do not stay equal", zap.String("problem", problem))
	}
	e.problem = problem
}

// active reports whether Redis drops keys.
func (e *eviction) active() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem != ""
}
