// Package pigeonhole tests the binary between real servers: one suite for every pair
// of source and sink, and what breaks on a bad day. Everything is counted at the
// destination.
package pigeonhole

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
)

// asService makes the test binary run Pigeonhole, as a process that can be killed.
const asService = "AVIARY_TEST_AS_PIGEONHOLE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		os.Exit(app.Main(app.Program[pigeonhole.Config]{
			Name: "pigeonhole", Defaults: pigeonhole.DefaultConfig, Build: pigeonhole.Build,
		}))
	}
	os.Exit(m.Run())
}

// service is a Pigeonhole with a configuration file. It can be started again after it
// ended.
type service struct {
	t    testing.TB
	file string
	cmd  *exec.Cmd
	done chan error
	log  *logged
	from int // where this process began to write
}

// logged keeps what the process has written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// run starts a service, which is stopped with the test.
func run(t testing.TB, config string) *service {
	t.Helper()
	s := &service{t: t, file: filepath.Join(t.TempDir(), "pigeonhole.yaml"), log: new(logged)}
	s.write(config)
	s.start()
	t.Cleanup(func() {
		defer func() {
			if t.Failed() {
				text := s.log.String()
				t.Logf("pigeonhole wrote:\n%s", text[max(0, len(text)-8000):])
			}
		}()
		if s.cmd != nil {
			s.stop()
		}
	})
	return s
}

func (s *service) write(config string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.file, []byte(config), 0o600))
}

func (s *service) start() {
	s.t.Helper()
	s.cmd = exec.Command(os.Args[0], "-config.file", s.file) // it ends with the test, in order
	s.cmd.Env = append(os.Environ(), asService+"=1", "PIGEONHOLE_ADMIN_LISTEN=127.0.0.1:0")
	s.cmd.Stderr, s.from = s.log, len(s.log.String())
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	require.NoError(s.t, s.cmd.Start())
	cmd, done := s.cmd, make(chan error, 1)
	s.done = done
	go func() { done <- cmd.Wait() }()
}

// stop asks the service to end and waits for it.
func (s *service) stop() {
	s.t.Helper()
	s.url("") // before it has begun a signal just ends it
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case err := <-s.done:
		require.NoError(s.t, err, "%s", s.log)
	case <-time.After(40 * time.Second):
		_ = s.cmd.Process.Kill()
		s.t.Errorf("did not stop:\n%s", s.log)
	}
	s.cmd = nil
}

// kill ends it at once.
func (s *service) kill() {
	s.t.Helper()
	require.NoError(s.t, s.cmd.Process.Kill())
	<-s.done
	s.cmd = nil
}

// reload has it read its configuration again.
func (s *service) reload(config string) {
	s.t.Helper()
	s.write(config)
	require.NoError(s.t, s.cmd.Process.Signal(syscall.SIGHUP))
}

// url is a page of the admin server.
func (s *service) url(path string) string {
	s.t.Helper()
	var address string
	require.Eventually(s.t, func() bool {
		found := regexp.MustCompile(`"msg":"listening"[^\n]*"address":"([^"]+)"`).FindStringSubmatch(s.log.String()[s.from:])
		if found != nil {
			address = found[1]
		}
		return address != ""
	}, 20*time.Second, 10*time.Millisecond)
	return "http://" + address + path
}

func (s *service) ask(method, path string) (status int, body []byte) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, s.url(path), nil)
	require.NoError(s.t, err)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	require.NoError(s.t, err)
	return resp.StatusCode, body
}

// route returns a route's state.
func (s *service) route(name string) (st pigeonhole.Status) {
	s.t.Helper()
	if status, body := s.ask(http.MethodGet, "/routes/"+name); status == http.StatusOK {
		require.NoError(s.t, json.Unmarshal(body, &st), "%s", body)
	}
	return st
}

// await waits until the route is as it should be.
func (s *service) await(name string, limit time.Duration, is func(pigeonhole.Status) bool) pigeonhole.Status {
	s.t.Helper()
	var last pigeonhole.Status
	for deadline := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) { // polling a condition
		if last = s.route(name); is(last) {
			return last
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("route %s: %+v", name, last)
		}
	}
}

// memory is what the process has in memory.
func (s *service) memory() int {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	require.NotNil(s.t, found)
	kib, err := strconv.Atoi(string(found[1]))
	require.NoError(s.t, err)
	return kib << 10
}

// one is the configuration of one route, with more keys as lines.
func one(name, source, sink, to string, more ...string) string {
	return "routes:\n" + route(name, source, sink, to, more...)
}

func route(name, source, sink, to string, more ...string) string {
	text := fmt.Sprintf("- name: %s\n  source: {%s}\n  sink: {%s}\n  to: %q\n", name, source, sink, to)
	for _, line := range more {
		text += "  " + strings.TrimSpace(line) + "\n"
	}
	return text
}
