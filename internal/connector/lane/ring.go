package lane

// ring is a queue of entries that grows as needed.
type ring struct {
	slots  []*entry // its length is a power of two
	from   int
	len    int
	popped int // ever
}

func (r *ring) at(i int) *entry { return r.slots[(r.from+i)&(len(r.slots)-1)] }
func (r *ring) head() *entry    { return r.slots[r.from] }

func (r *ring) push(e *entry) {
	if r.len == len(r.slots) {
		grown := make([]*entry, max(2*len(r.slots), 16))
		for i := range r.len {
			grown[i] = r.at(i)
		}
		r.slots, r.from = grown, 0
	}
	r.slots[(r.from+r.len)&(len(r.slots)-1)] = e
	r.len++
}

func (r *ring) pop() {
	r.slots[r.from] = nil
	r.from = (r.from + 1) & (len(r.slots) - 1)
	r.len--
	r.popped++
}
