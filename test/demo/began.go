package main

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/aviaryhq/aviary/test/demo/display"
)

// age is how long this process has run. Behind "go build ... && exec", as in the Makefile, the
// build counts, too: exec changes the program, not the process.
func age() (time.Duration, error) {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses and may hold anything, so count from
	// its end.
	const ticksPerSecond, startTime = 100, 22 - 3
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) <= startTime {
		return 0, errors.New("unexpected /proc/self/stat")
	}
	began, err := strconv.ParseInt(fields[startTime], 10, 64)
	if err != nil {
		return 0, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0, err
	}
	return time.Duration(now.Nano()) - time.Duration(began)*time.Second/ticksPerSecond, nil
}

// firstData notes when the first of all data has arrived behind a service.
type firstData struct {
	screen  *display.Screen
	once    sync.Once
	arrived chan struct{} // closed then
}

func newFirstData(s *display.Screen) *firstData {
	return &firstData{screen: s, arrived: make(chan struct{})}
}

// from is called by each flow with whatever arrives.
func (f *firstData) from(service string) {
	f.once.Do(func() {
		close(f.arrived)
		if after, err := age(); err == nil {
			f.screen.Note("first data after %s, from %s", after.Round(100*time.Millisecond), service)
		}
	})
}
