package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// StopTimeout is how long a server may take to end after SIGTERM, on a machine that is busy, too.
const StopTimeout = time.Minute

// An ID names a process for as long as the machine runs: a process id is reused, the pair with
// its start time is not.
type ID struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot, from /proc/PID/stat.
	Start uint64 `json:"start"`
}

// Identify returns the ID of a process that runs now.
func Identify(pid int) (ID, error) {
	_, start, err := procStat(pid)
	if err != nil {
		return ID{}, fmt.Errorf("process %d is gone: %w", pid, err)
	}
	return ID{PID: pid, Start: start}, nil
}

// procStat returns state and start time of a process.
func procStat(pid int) (state byte, start uint64, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The second field is the program's name in parentheses and may hold anything, so count from
	// its end.
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}

// State returns the state letter of /proc/PID/stat, or 0 if the process has ended. A zombie counts as
// ended.
func (p ID) State() byte {
	state, start, err := procStat(p.PID)
	if err != nil || start != p.Start || state == 'Z' || state == 'X' {
		return 0
	}
	return state
}

// Alive reports whether the process runs.
func (p ID) Alive() bool { return p.State() != 0 }

// Signal sends sig. A process that has ended is no error.
func (p ID) Signal(sig syscall.Signal) error {
	if !p.Alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot send %v to process %d: %w", sig, p.PID, err)
	}
	return nil
}

// WaitGone waits until the process has ended.
func (p ID) WaitGone(ctx context.Context) error {
	return Poll(ctx, 10*time.Millisecond, func() (bool, error) { return !p.Alive(), nil })
}

// Stop ends the process: SIGTERM, a bounded wait, SIGKILL.
func (p ID) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	// A paused process sees SIGTERM only once it continues.
	if err := p.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	ending, cancel := context.WithTimeout(ctx, StopTimeout)
	defer cancel()
	if p.WaitGone(ending) == nil {
		return nil
	}
	return p.Kill()
}

// Kill ends the process with SIGKILL and waits until it is gone.
func (p ID) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), StopTimeout)
	defer cancel()
	if err := p.WaitGone(ctx); err != nil {
		return fmt.Errorf("process %d survives SIGKILL: %w", p.PID, err)
	}
	return nil
}

// StopAll has no context: what was started must be stopped also when the caller's time is over.
func StopAll(processes []ID) error {
	errs := make([]error, len(processes))
	var wg sync.WaitGroup
	for i, p := range processes {
		wg.Go(func() { errs[i] = p.Stop(context.Background()) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
