// Package pigeonhole tests the binary between real servers: one suite for every pair of source and
// sink, and faults of servers and connections. It counts messages at the destination.
package pigeonhole

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/pigeonhole"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/parallel"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/variable"
)

func TestMain(m *testing.M) {
	parallel.Tests(4)
	systems.Main(m, func() int {
		return app.Main(app.Program[pigeonhole.Config]{
			Name: "pigeonhole", Defaults: pigeonhole.DefaultConfig, Build: pigeonhole.Build, Connect: pigeonhole.Connect,
		})
	})
}

// AVIARY_PIGEONHOLE_SECONDS asks for the long forms: for how long an outage takes, and for how long
// rounds of faults go on. AVIARY_PIGEONHOLE_SEED is the seed of what is random. Without it, it is a
// new one in the long forms.
const (
	seconds = "AVIARY_PIGEONHOLE_SECONDS"
	seedOf  = "AVIARY_PIGEONHOLE_SEED"
)

// random is a source of the test's own. Its seed is printed.
func random(t testing.TB) *rand.Rand {
	t.Helper()
	seed := uint64(1)
	if long(t) > 0 {
		seed = rand.Uint64()
	}
	seed = variable.Number(t, seedOf, seed)
	t.Logf("%s=%d", seedOf, seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// long is how long the faults of the long forms take, 0 in an ordinary run.
func long(t testing.TB) time.Duration {
	t.Helper()
	return time.Duration(variable.Number(t, seconds, 0)) * time.Second
}

// rounds calls round n times, and further ones in the long form.
func rounds(t testing.TB, n int, round func(i int)) {
	t.Helper()
	end := time.Now().Add(long(t))
	for i := 0; i < n || time.Now().Before(end); i++ {
		round(i)
	}
}

// service is a Pigeonhole with a configuration file. It can be started again after it
// ended.
type service struct {
	*systems.Process
	t    testing.TB
	file string
}

// run starts a service, which is stopped with the test.
func run(t testing.TB, config string) *service {
	t.Helper()
	s := &service{t: t, file: filepath.Join(t.TempDir(), "pigeonhole.yaml")}
	s.write(config)
	s.Process = systems.Run(t, []string{"-config.file", s.file}, []string{"PIGEONHOLE_ADMIN_LISTEN=127.0.0.1:0"})
	return s
}

func (s *service) write(config string) {
	s.t.Helper()
	require.NoError(s.t, os.WriteFile(s.file, []byte(config), 0o600))
}

// reload has it read its configuration again.
func (s *service) reload(config string) {
	s.t.Helper()
	s.write(config)
	s.Signal(syscall.SIGHUP)
}

// route returns a route's state.
func (s *service) route(name string) (st pigeonhole.Status) {
	s.t.Helper()
	if status, body := s.Ask(http.MethodGet, "/routes/"+name); status == http.StatusOK {
		require.NoError(s.t, json.Unmarshal(body, &st), "%s", body)
	}
	return st
}

// pollEvery is how often conditions are looked at.
const pollEvery = 20 * time.Millisecond

// await waits until the route is as it should be.
func (s *service) await(name string, is func(pigeonhole.Status) bool) pigeonhole.Status {
	s.t.Helper()
	var last pigeonhole.Status
	for deadline := time.Now().Add(await.Patience); ; time.Sleep(pollEvery) { // polling a condition
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
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID()))
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
