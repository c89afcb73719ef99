package door

import (
	"sync"
	"time"
)

// rereadFiles is how long a file of secrets or keys is taken to be unchanged.
const rereadFiles = 10 * time.Second

// Reread says when files that a request needs are to be read again. One request reads them, the others go on with what is known: a file system
// that hangs does not hold all up. The zero value lets the first caller read. It is safe for concurrent use.
type Reread struct {
	mu      sync.Mutex
	readAt  time.Time
	reading bool
}

// Read calls read if nobody does and the last time was ten seconds ago.
func (r *Reread) Read(read func()) {
	if !r.due() {
		return
	}
	defer func() {
		r.mu.Lock()
		r.reading = false
		r.mu.Unlock()
	}()
	read()
}

// Fresh notes that the files have just been read.
func (r *Reread) Fresh() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Now()
}

func (r *Reread) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.reading || now.Sub(r.readAt) < rereadFiles {
		return false
	}
	r.readAt, r.reading = now, true
	return true
}

// Expire has the next caller read, however recent the last time was.
func (r *Reread) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Time{}
}
