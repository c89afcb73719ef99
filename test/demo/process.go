package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/systems/owned"
)

// child is a process of this run. The kernel kills it should the demo die.
type child struct {
	name    string
	process *owned.Process
	log     *log
}

// spawn starts a program whose output goes to a log file.
func spawn(dir, name, program string, environ []string, args ...string) (*child, error) {
	// Of a program that is started again the log goes on.
	out, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	c := &child{name: name, log: &log{file: out}}
	cmd := exec.Command(program, args...)
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), environ...), c.log
	if c.process, err = owned.Start(cmd, nil); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	go func() {
		<-c.process.Ended()
		_ = out.Close()
	}()
	return c, nil
}

// maxLine is how much of a line is kept for the screen.
const maxLine = 1 << 20

// log writes what a child logs to its file, and remembers the last line.
type log struct {
	file *os.File

	mu         sync.Mutex
	line, last []byte // the one being written, and the last one that is complete
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(p) {
		l.line = append(l.line, line[:min(len(line), maxLine-len(l.line))]...)
		if bytes.HasSuffix(line, []byte("\n")) {
			l.line, l.last = l.last[:0], bytes.TrimSuffix(l.line, []byte("\n"))
		}
	}
	return l.file.Write(p)
}

// lastLine is empty as long as nothing was logged.
func (l *log) lastLine() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.line) > 0 {
		return string(l.line)
	}
	return string(l.last)
}

// status waits for the end of a child and says how it ended.
func (c *child) status() string {
	if err := c.process.Wait(); err != nil {
		return err.Error()
	}
	return "exit status 0"
}

// death says why a child that should run does not.
func (c *child) death() error {
	return fmt.Errorf("%s ended with %s: %s", c.name, c.status(), c.log.lastLine())
}

// await polls until ready says so, the child ends or ctx does, for no longer than patience.
func (c *child) await(ctx context.Context, what string, ready func(context.Context) error) error {
	asked := ctx
	ctx, cancel := context.WithTimeout(ctx, patience)
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
		case <-c.process.Ended():
			return c.death()
		case <-ctx.Done():
			if asked.Err() != nil {
				return asked.Err()
			}
			return fmt.Errorf("%s: %s within %s: %w", c.name, what, patience, err)
		}
	}
}

// stop asks the child to end, insists when ctx ends, and says if it failed.
func (c *child) stop(ctx context.Context) error {
	if c == nil {
		return nil
	}
	if !c.process.Running() {
		return c.death()
	}
	err := c.process.Stop(ctx)
	switch {
	case errors.Is(err, owned.ErrKilled):
		return fmt.Errorf("%s did not stop in time and was killed", c.name)
	case c.process.Running():
		return err
	case err != nil:
		return c.death()
	}
	return nil
}

// kill ends the child as a crash would, and returns when it has ended.
func (c *child) kill() error {
	if !c.process.Running() {
		return c.death()
	}
	if err := c.process.Kill(); err != nil {
		return fmt.Errorf("cannot kill %s: %w", c.name, err)
	}
	return nil
}

// ports are the addresses that services of this run listen on.
type ports struct {
	screen *display.Screen

	mu    sync.Mutex
	given map[string]bool // flows start at the same time, and a service may not listen yet
}

// listen returns an address of the loopback interface for a service: the preferred port if it is
// free, else any free one, and a note says that another process has the preferred one.
func (p *ports) listen(service string, preferred int) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	inUse := ""
	for attempt := range 10 {
		want := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}
		if attempt == 0 {
			want.Port = preferred
		}
		ln, err := net.ListenTCP("tcp4", want)
		if err != nil {
			if attempt == 0 && !p.given[want.String()] {
				inUse = want.String()
			}
			continue
		}
		address := ln.Addr().String()
		if err := ln.Close(); err != nil {
			return "", err
		}
		if !p.given[address] {
			if p.given == nil {
				p.given = map[string]bool{}
			}
			p.given[address] = true
			if inUse != "" {
				p.screen.Note("%s: %s is in use; listening on %s", service, inUse, address)
			}
			return address, nil
		}
	}
	return "", errors.New("no free port on 127.0.0.1")
}
