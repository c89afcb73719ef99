package sonic

import (
	"fmt"
	"strconv"
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

// memoryProblem returns a problem if Redis has reached its maxmemory, so that it refuses writes,
// according to the memory section of INFO. It returns "" if Redis has not, or if that is unknown.
func memoryProblem(info map[string]string) string {
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(info[name], 10, 64)
		return n
	}
	used, most := number("used_memory")-number("mem_not_counted_for_evict"), number("maxmemory")
	if most <= 0 || used <= most {
		return ""
	}
	return fmt.Sprintf("it uses %d bytes, and its maxmemory is %d: delete keys, or raise maxmemory", used, most)
}

// memory watches how Redis uses its memory: whether it drops keys while Sonic runs, after a change
// of its configuration, or because a promoted replica has another configuration; and whether it has
// reached its maxmemory. It is safe for concurrent use.
type memory struct {
	log *zap.Logger

	mu           sync.Mutex
	evicts, full string // see evictionProblem, memoryProblem
}

func newMemory(log *zap.Logger) *memory { return &memory{log: log.Named("redis")} }

// update stores the present problems according to INFO, and logs each change once.
func (m *memory) update(info map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch before, now := m.evicts, evictionProblem(info); {
	case before == now:
	case now == "":
		m.evicts = now
		m.log.Info("Redis no longer evicts keys: the evicted keys are missing in this zone, see sonic -check")
	default:
		m.evicts = now
		m.log.Error("Redis evicts keys: zones do not stay equal", zap.String("problem", now))
	}
	before := m.full
	switch m.full = memoryProblem(info); {
	case before == "" && m.full != "":
		m.log.Error("Redis has reached its maxmemory: writes of clients are refused, writes of other zones are still applied", zap.String("problem", m.full))
	case before != "" && m.full == "":
		m.log.Info("Redis is below its maxmemory again")
	}
}

// evicting reports whether Redis drops keys.
func (m *memory) evicting() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.evicts != ""
}

// problem returns what is wrong while Redis has reached its maxmemory, "" otherwise.
func (m *memory) problem() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.full
}
