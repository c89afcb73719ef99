package stack

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// pidNamespace returns what process ids here are valid in. Containers that share a cache folder must not share state: each would take the servers
// of the others for dead, and delete their data. It is "" outside of containers.
func pidNamespace() string {
	const outside = "4026531836" // PROC_PID_INIT_INO of Linux
	link, err := os.Readlink("/proc/self/ns/pid")
	id := strings.Trim(strings.TrimPrefix(link, "pid:"), "[]")
	if err != nil || id == outside {
		return ""
	}
	return id
}

// markAlive takes a shared lock on this stack's state. Servers inherit it, and a test binary keeps it while it has private ones: unlike process
// ids it is seen from other containers.
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

// sweepContainers deletes what stacks of this checkout have left in containers that are gone. Failing to is harmless: the next one tries again.
func (s *Stack) sweepContainers() {
	dirs, _ := filepath.Glob(s.prefix + "*")
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if dir == s.dir || err != nil || !info.IsDir() {
			continue
		}
		other := &Stack{dir: dir}
		if unlock, ok := tryLock(other.lockPath()); ok { // no Up or Down is under way there
			if release, ok := tryLock(other.alivePath()); ok {
				_ = os.RemoveAll(dir)
				release()
			}
			unlock()
		}
	}
}

// tryLock takes an exclusive lock unless somebody has one.
func tryLock(path string) (release func(), ok bool) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, false
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, false
	}
	return func() { f.Close() }, true
}
