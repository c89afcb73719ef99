package admission

// Shares counts the entries of a bounded table by tenant, and chooses the tenant whose entry is
// evicted when the table is full. So no tenant can take the place of others. A Shares is not safe
// for concurrent use: the lock of the table guards it.
type Shares struct {
	limit, total int
	held         map[string]int // entries by tenant, never 0
}

// NewShares returns the shares of a table for limit entries.
func NewShares(limit int) *Shares { return &Shares{limit: limit, held: make(map[string]int)} }

// Full reports whether an entry must be evicted before another one is added.
func (s *Shares) Full() bool { return s.total >= s.limit }

// Add counts n more entries of a tenant, or fewer if n is negative. It keeps the tenant's name.
func (s *Shares) Add(tenant string, n int) {
	s.total += n
	if s.held[tenant] += n; s.held[tenant] == 0 {
		delete(s.held, tenant)
	}
}

// EvictFrom returns the tenant whose entry is evicted from a full table for a new entry of the given
// tenant. That is the given tenant if it has its share or more, the limit divided by the number of
// tenants. Otherwise it is the tenant with the most entries.
func (s *Shares) EvictFrom(tenant string) string {
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
