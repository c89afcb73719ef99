package stack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// pidNamespace returns what process ids here are valid in. Containers that share a cache folder
// must not share state: each would take the servers of the others for dead, and delete their data.
// It is "" outside of containers.
func pidNamespace() string {
	const outside = "4026531836" // PROC_PID_INIT_INO of Linux
	link, err := os.Readlink("/proc/self/ns/pid")
	id := strings.Trim(strings.TrimPrefix(link, "pid:"), "[]")
	if err != nil || id == outside {
		return ""
	}
	return id
}

// markAlive takes a shared lock on this stack's state. Servers inherit it, and a test binary keeps
// it while it has private ones: unlike process ids it is seen from other containers.
func (s *Stack) markAlive() (*os.File, error) {
	f, err := os.OpenFile(s.alivePath(), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (s *Stack) alivePath() string { return s.dir + ".alive" }

// sweep deletes what tests and fetches that were killed have left: data of private servers, which
// the kernel has killed with them, and folders that are not complete.
func (s *Stack) sweep() {
	s.sweepPrivate()
	s.packages.Sweep()
}

// sweepDead deletes what stacks have left whose servers and tests all were killed, those of other
// names, checkouts and containers, too. The log of a start that failed is not among it, but for
// containers that are gone: nobody could look for it there. Failing to is harmless: the next one
// tries again.
func (s *Stack) sweepDead() {
	s.sweep()
	for _, svc := range s.services() {
		if rec, err := s.loadRecord(svc.name); err == nil && rec != nil && rec.dead() {
			_ = s.remove(rec)
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(s.cache, "stack", "*"))
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if dir == s.dir || err != nil || !info.IsDir() {
			continue
		}
		other := &Stack{dir: dir}
		if unlock, ok := process.TryLock(other.lockPath()); ok { // no Up or Down is under way there
			if release, ok := process.TryLock(other.alivePath()); ok {
				if strings.HasPrefix(dir, s.prefix) || other.left() {
					_ = os.RemoveAll(dir)
				}
				release()
			} else if namespaceOf(dir) == namespaceOf(s.dir) { // process ids mean the same
				other.sweepPrivate()
			}
			unlock()
		}
	}
}

// namespaceOf returns the process id namespace that is part of the name of a stack's folder.
func namespaceOf(dir string) string {
	_, namespace, _ := strings.Cut(filepath.Base(dir), "-")
	return namespace
}

// left reports whether there are records of servers or data of private ones.
func (s *Stack) left() bool {
	for _, pattern := range []string{s.recordPath("*"), filepath.Join(s.dir, "private", "*")} {
		if found, _ := filepath.Glob(pattern); len(found) > 0 {
			return true
		}
	}
	return false
}
