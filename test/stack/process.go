package stack

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

// stopPatience is how long a server may take to end after SIGTERM.
const stopPatience = 15 * time.Second

// A process names a process for as long as the machine runs: a process id is reused, the pair with its start time
// is not.
type process struct {
	PID int `json:"pid"`
	// Start is the start time in clock ticks since boot, from /proc/PID/stat.
	Start uint64 `json:"start"`
}

func identify(pid int) (process, error) {
	_, start, err := procStat(pid)
	if err != nil {
		return process{}, fmt.Errorf("process %d is gone: %w", pid, err)
	}
	return process{PID: pid, Start: start}, nil
}

// procStat returns state and start time of a process.
func procStat(pid int) (state byte, start uint64, err error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// The second field is the program's name in parentheses and may hold anything, so count from its end.
	rest := string(data[strings.LastIndexByte(string(data), ')')+1:])
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("unexpected /proc/%d/stat", pid)
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return fields[0][0], start, err
}

// state returns 0 for a process that has ended; a zombie has, its parent just has not asked yet.
func (p process) state() byte {
	state, start, err := procStat(p.PID)
	if err != nil || start != p.Start || state == 'Z' || state == 'X' {
		return 0
	}
	return state
}

func (p process) alive() bool { return p.state() != 0 }

func (p process) signal(sig syscall.Signal) error {
	if !p.alive() {
		return nil
	}
	if err := syscall.Kill(p.PID, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("cannot send %v to process %d: %w", sig, p.PID, err)
	}
	return nil
}

func (p process) waitGone(ctx context.Context) error {
	return poll(ctx, 10*time.Millisecond, func() (bool, error) { return !p.alive(), nil })
}

// stop ends the process: SIGTERM, a bounded wait, SIGKILL.
func (p process) stop(ctx context.Context) error {
	if err := p.signal(syscall.SIGTERM); err != nil {
		return err
	}
	// A paused process sees SIGTERM only once it continues.
	if err := p.signal(syscall.SIGCONT); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if p.waitGone(patient) == nil {
		return nil
	}
	return p.kill()
}

// kill ends the process with SIGKILL and waits until it is gone.
func (p process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := p.waitGone(ctx); err != nil {
		return fmt.Errorf("process %d survives SIGKILL: %w", p.PID, err)
	}
	return nil
}

// stopAll has no context: what was started must be stopped also when the caller's time is over.
func stopAll(processes []process) error {
	errs := make([]error, len(processes))
	var wg sync.WaitGroup
	for i, p := range processes {
		wg.Go(func() { errs[i] = p.stop(context.Background()) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
