package nightingale

import (
	"sync"

	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
)

const (
	// memoryBase is the memory for everything except bodies and messages.
	memoryBase = 64 << 20
	// pendingOverhead is how many bytes the Pulsar client needs for a record until it is
	// acknowledged. Measured: 100,000 records of 250 bytes took 154 MiB besides their own 38 MiB.
	pendingOverhead = 1536
)

// memoryLimit returns how much memory the process needs at most with this configuration, roughly:
// for the bodies and messages of requests in flight, the publish queue, and the rest. The payloads
// in the queue are already counted as in flight. The queue adds copies in batches or, for small
// records, the overhead of each.
func memoryLimit(cfg Config) int64 {
	queue := max(cfg.Profile.MaxPendingBytes, int64(cfg.Profile.MaxPendingRecords)*pendingOverhead)
	return int64(cfg.Limits.InFlightBytes) + queue + memoryBase
}

// pool keeps memory of requests for further requests.
type pool[T any] struct{ sync.Pool }

func (p *pool[T]) get() *T {
	if used, ok := p.Get().(*T); ok {
		return used
	}
	return new(T)
}

type pools struct {
	bodies              pool[[]byte]
	spaces, largeSpaces pool[requestSpace]
	messages            pool[publish.Outgoing]
}

// releaseBody does not keep a large body: small requests must not hold large buffers.
func (p *pools) releaseBody(body *[]byte) {
	if cap(*body) <= remotewrite.KeepBody {
		p.bodies.Put(body)
	}
}

// requestSpace is the memory for handling a request. A request gets one after its body was read, so
// that slow senders use none. It releases it after encoding the last messages, before it waits for
// their acknowledgement.
type requestSpace struct {
	decoded, scratch []byte
	size             int // estimate of the messages
	publish.Workspace
}

// Used spaces are kept for requests of the same kind, large or small. So there are never more large
// ones than the bound of bytes in flight has allowed at one time.
const (
	largeBody = 192 << 10 // compressed
	keepSmall = 4 << 20   // maximum size that is kept for small requests
	keepLarge = 48 << 20  // maximum size that is kept for large requests
)

// newSpace returns the space for a compressed body of that many bytes.
func (p *pools) newSpace(body int) *requestSpace {
	if body > largeBody {
		return p.largeSpaces.get()
	}
	return p.spaces.get()
}

func (p *pools) releaseSpace(space *requestSpace) {
	space.Reset()
	switch size := cap(space.decoded) + cap(space.scratch) + space.Size(); {
	case size <= keepSmall:
		p.spaces.Put(space)
	case size <= keepLarge:
		p.largeSpaces.Put(space)
	}
}

func (p *pools) releaseMessages(messages *publish.Outgoing) {
	if messages.Capacity() <= 2*remotewrite.KeepBuffer {
		messages.Reset()
		p.messages.Put(messages)
	}
}
