package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// child is a process of this run. The kernel kills it should the demo die.
type child struct {
	name  string
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended, with err set
	err   error

	mu        sync.Mutex
	last      string            // of what it logged
	addresses map[string]string // "listening" lines: server -> address
	heard     chan struct{}     // closed and replaced at each such line
}

// spawn starts a program whose output goes to a log file.
func spawn(env *environment, name, program string, environ []string, args ...string) (*child, error) {
	out, err := os.Create(filepath.Join(env.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	c := &child{name: name, cmd: exec.Command(program, args...), ended: make(chan struct{}), addresses: map[string]string{}, heard: make(chan struct{})}
	c.cmd.Dir, c.cmd.Env = env.dir, append(os.Environ(), environ...)
	pipe, err := c.cmd.StderrPipe()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	// A group of its own, so that Ctrl-C reaches the demo only, which stops its
	// children in order. The parent-death signal is tied to the thread that
	// started the child: it stays locked until the child has ended.
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(c.ended)
		defer func() { _ = out.Close() }()
		err := c.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		c.read(io.TeeReader(pipe, out))
		c.err = c.cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	return c, nil
}

// read follows the log until the child closes it.
func (c *child) read(r io.Reader) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Msg     string `json:"msg"`
			Server  string `json:"server"`
			Address string `json:"address"`
		}
		listening := json.Unmarshal(lines.Bytes(), &entry) == nil && entry.Msg == "listening"
		c.mu.Lock()
		c.last = lines.Text()
		if listening {
			c.addresses[entry.Server] = entry.Address
			close(c.heard)
			c.heard = make(chan struct{})
		}
		c.mu.Unlock()
	}
	_, _ = io.Copy(io.Discard, r) // after a line beyond the limit
}

// address waits until the child says that a server of it listens.
func (c *child) address(ctx context.Context, server string) (string, error) {
	for {
		c.mu.Lock()
		address, heard := c.addresses[server], c.heard
		c.mu.Unlock()
		if address != "" {
			return address, nil
		}
		select {
		case <-heard:
		case <-c.ended:
			return "", c.death()
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// death says why a child that should run does not.
func (c *child) death() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	how := "exit status 0"
	if c.err != nil {
		how = c.err.Error()
	}
	return fmt.Errorf("%s ended with %s: %s", c.name, how, c.last)
}

// await polls until ready says so, the child ends or ctx does.
func (c *child) await(ctx context.Context, what string, limit time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-c.ended:
			return c.death()
		case <-ctx.Done():
			return fmt.Errorf("%s: %s within %s: %w", c.name, what, limit, err)
		}
	}
}

// stop asks the child to end, insists when ctx ends, and says if it failed.
func (c *child) stop(ctx context.Context) error {
	if c == nil {
		return nil
	}
	select {
	case <-c.ended:
		return c.death()
	default:
	}
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("cannot stop %s: %w", c.name, err)
	}
	select {
	case <-c.ended:
	case <-ctx.Done():
		_ = c.cmd.Process.Kill()
		<-c.ended
		return fmt.Errorf("%s did not stop in time and was killed", c.name)
	}
	if c.err != nil {
		return c.death()
	}
	return nil
}

// build compiles one of the services.
func build(ctx context.Context, env *environment, service string) (string, error) {
	binary := filepath.Join(env.dir, service)
	if _, err := os.Stat(binary); err == nil {
		return binary, nil // by another flow
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/"+service)
	cmd.Dir = env.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %w: %s", service, err, strings.TrimSpace(string(out)))
	}
	return binary, nil
}

// listenAddress returns the preferred port on the loopback address if it is free,
// and any free one otherwise.
func listenAddress(preferred int) (string, error) {
	for _, port := range []int{preferred, 0} {
		ln, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
		if err != nil {
			continue
		}
		address := ln.Addr().String()
		return address, ln.Close()
	}
	return "", errors.New("no free port on 127.0.0.1")
}
