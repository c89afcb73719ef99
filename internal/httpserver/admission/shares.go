package admission

import "strings"

// Shares counts the entries of a bounded table by tenant. If the table is full, the tenant with the
// most entries gives way, so no tenant can take the place of others. A Shares is not safe for
// concurrent use: the lock of the table guards it.
type Shares struct {
	limit, total int
	held         map[string]int // entries by tenant, never 0
}

// NewShares returns the shares of a table for limit entries.
func NewShares(limit int) *Shares { return &Shares{limit: limit, held: make(map[string]int)} }

// Full reports whether an entry must leave the table before another one enters.
func (s *Shares) Full() bool { return s.total >= s.limit }

// Add counts n more entries of a tenant, or fewer if n is negative.
func (s *Shares) Add(tenant string, n int) {
	s.total += n
	switch held, known := s.held[tenant]; {
	case held+n == 0:
		delete(s.held, tenant)
	case known:
		s.held[tenant] = held + n
	default:
		s.held[strings.Clone(tenant)] = n
	}
}

// Loser returns the tenant that must give up an entry of a full table for a new entry of the given
// tenant. That is the tenant itself if it holds its share, the limit divided by the number of
// tenants. Otherwise it is the tenant that holds most.
func (s *Shares) Loser(tenant string) string {
	if s.held[tenant]*len(s.held) >= s.limit {
		return tenant
	}
	most := tenant
	for name, n := range s.held {
		if n > s.held[most] {
			most = name
		}
	}
	return most
}
