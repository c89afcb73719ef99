package eventloop

const (
	// BufferSize is the capacity of all buffers.
	BufferSize = 16 << 10
	// keptBuffers is how many free buffers are kept at most.
	keptBuffers = 1024
)

// Buffers keeps free buffers for reuse. An idle client has no buffer.
type Buffers struct{ free [][]byte }

// Get returns an empty buffer.
func (p *Buffers) Get() []byte {
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return b
	}
	return make([]byte, 0, BufferSize)
}

// Put takes a buffer back. It leaves larger buffers to the garbage collector.
func (p *Buffers) Put(b []byte) {
	if cap(b) == BufferSize && len(p.free) < keptBuffers {
		p.free = append(p.free, b[:0])
	}
}
