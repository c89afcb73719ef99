package proxy

const (
	pooledSize  = 16 << 10
	pooledCount = 1024
)

// buffers keeps memory of clients that need none now: an idle client has no buffer.
type buffers struct{ free [][]byte }

// get returns an empty buffer.
func (p *buffers) get() []byte {
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, 0, pooledSize)
}

// put takes a buffer back. Larger ones are left to the garbage collector.
func (p *buffers) put(b []byte) {
	if cap(b) == pooledSize && len(p.free) < pooledCount {
		p.free = append(p.free, b[:0])
	}
}
