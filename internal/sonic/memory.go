package sonic

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
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
		return fmt.Sprintf("its maxmemory-policy is %s, which evicts keys, also those of Sonic: set it to %s", policy, noEviction)
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

// memory watches how each Redis of the zone uses its memory: whether it drops keys while Sonic runs,
// after a change of its configuration, or because a promoted replica has another configuration; and
// whether it has reached its maxmemory. It is safe for concurrent use.
type memory struct {
	log *zap.Logger

	mu sync.Mutex
	of map[string]memoryProblems // by address
}

// memoryProblems are the results of evictionProblem and memoryProblem.
type memoryProblems struct{ evicts, full string }

func newMemory(log *zap.Logger) *memory {
	return &memory{log: log.Named("redis"), of: map[string]memoryProblems{}}
}

// update stores the present problems of a Redis according to INFO, and logs each change once.
func (m *memory) update(address string, info map[string]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	log := m.log.With(zap.String("address", address))
	before, now := m.of[address], memoryProblems{evictionProblem(info), memoryProblem(info)}
	m.of[address] = now
	switch {
	case before.evicts == now.evicts:
	case now.evicts == "":
		log.Info("Redis no longer evicts keys: this zone lacks the evicted keys, sonic -repair restores them")
	default:
		log.Error("Redis evicts keys: zones do not stay equal", zap.String("problem", now.evicts))
	}
	switch {
	case before.full == "" && now.full != "":
		log.Error("Redis has reached its maxmemory: writes of clients are refused, writes of other zones are still applied", zap.String("problem", now.full))
	case before.full != "" && now.full == "":
		log.Info("Redis is below its maxmemory again")
	}
}

// keep forgets all Redis but those at addresses.
func (m *memory) keep(addresses []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.of, func(address string, _ memoryProblems) bool { return !slices.Contains(addresses, address) })
}

// problems returns why a Redis drops keys, and why one refuses writes. Both are "" if none does.
func (m *memory) problems() (all memoryProblems) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, one := range m.of {
		all.evicts, all.full = cmp.Or(all.evicts, one.evicts), cmp.Or(all.full, one.full)
	}
	return all
}
