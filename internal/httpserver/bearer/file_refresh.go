package bearer

import (
	"sync"
	"time"
)

// refreshInterval is how often a file of secrets or keys is read at the most.
const refreshInterval = 10 * time.Second

// FileRefresh limits how often files that requests need are read again. One request reads them, the
// others use the earlier content: a file system that hangs blocks one request only. The zero value
// lets the first caller read. It is safe for concurrent use.
type FileRefresh struct {
	mu      sync.Mutex
	readAt  time.Time
	reading bool
}

// Do calls read unless a call is running or the last one was less than ten seconds ago.
func (r *FileRefresh) Do(read func()) {
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

// MarkDone records that the files have just been read.
func (r *FileRefresh) MarkDone() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Now()
}

func (r *FileRefresh) due() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.reading || now.Sub(r.readAt) < refreshInterval {
		return false
	}
	r.readAt, r.reading = now, true
	return true
}

// Expire makes the next Do call read, however recent the last call was.
func (r *FileRefresh) Expire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.readAt = time.Time{}
}
