package app_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/test/leak"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/await"
)

// asProgram makes the test binary run the program below as a process of its own.
const asProgram = "AVIARY_TEST_APP"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(app.Main(program()))
	}
	leak.Main(m.Run)
}

type config struct {
	app.Common `yaml:",inline"`
	Behaviour  string        `yaml:"behaviour"`
	Token      secret.String `yaml:"token"`
	Closed     string        `yaml:"closed"` // a file that is made when the client is closed
	Extra      bool          `yaml:"-"`
}

func defaults() config { return config{Common: app.DefaultCommon("127.0.0.1:0"), Behaviour: "good"} }

// program is a small service that serves HTTP and behaves as its configuration says.
func program() app.Program[config] {
	return app.Program[config]{
		Name: "bird", Summary: "A bird.", Defaults: defaults,
		Connect: func(c config) ([]trial.Trial, func()) {
			return []trial.Trial{{Name: "behaviour " + c.Behaviour, Try: func(context.Context) error {
				if c.Behaviour != "good" {
					return errors.New("it is bad")
				}
				return nil
			}}}, func() {}
		},
		Setup: func(_ context.Context, c config) ([]setup.Cluster, error) {
			switch c.Behaviour {
			case "good":
				return nil, nil
			case "no admin_url":
				return []setup.Cluster{{Path: "pulsar"}}, nil
			}
			return nil, errors.New("it is bad")
		},
		Flags: func(fs *flag.FlagSet, c *config) { fs.BoolVar(&c.Extra, "extra", c.Extra, "shut down at once") },
		Build: func(ctx context.Context, rt *app.Runtime, c config) error {
			rt.OnStop("client", func(context.Context) error {
				rt.Log.Info("client closed")
				if c.Closed == "" {
					return nil
				}
				return os.WriteFile(c.Closed, nil, 0o600)
			})
			ln, err := rt.Listen(ctx, "http", "http.listen", "127.0.0.1:0")
			if err != nil {
				return err
			}
			if c.Behaviour == "careless" {
				log.Printf("Unsolicited response received on idle HTTP channel starting with %q", "HTTP/1.1 200 OK\r\n\r\nthe token is 1234")
			}
			rt.Serve("http", ln, &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: await.Patience})
			if c.Behaviour != "deaf" {
				app.OnReload(rt, func(_ context.Context, changed config) error {
					switch changed.Behaviour {
					case "refused":
						return errors.New("the worker does not like it")
					case "panicking":
						panic("the change panics")
					}
					rt.Log.Info("worker changes", zap.String("behaviour", changed.Behaviour))
					return nil
				})
			}
			rt.Go("worker", func(ctx context.Context) error {
				switch c.Behaviour {
				case "failing":
					return errors.New("the worker is broken")
				case "panicking":
					panic("the worker panics")
				case "hung":
					rt.Log.Info("working")
					<-ctx.Done()
					rt.Log.Info("hanging")
					select {}
				}
				rt.Log.Info("working")
				<-ctx.Done()
				return ctx.Err()
			})
			if c.Extra {
				rt.Shutdown()
			}
			return nil
		},
	}
}

// command returns the program as a process; with its standard error as lines.
func command(t *testing.T, environ []string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asProgram+"=1", "GORACE=atexit_sleep_ms=0"), environ...)
	return cmd
}

func start(t *testing.T, cmd *exec.Cmd) *bufio.Scanner {
	t.Helper()
	stderr, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return bufio.NewScanner(stderr)
}

// until reads lines up to the one that contains text.
func until(t *testing.T, lines *bufio.Scanner, text string) {
	t.Helper()
	var seen []string
	for lines.Scan() {
		seen = append(seen, lines.Text())
		if strings.Contains(lines.Text(), text) {
			return
		}
	}
	t.Fatalf("%q was not logged, but:\n%s", text, strings.Join(seen, "\n"))
}

// end reads what is left and returns it with the exit status.
func end(t *testing.T, cmd *exec.Cmd, lines *bufio.Scanner) (string, int) {
	t.Helper()
	var rest strings.Builder
	for lines.Scan() {
		fmt.Fprintln(&rest, lines.Text())
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &exit)
	}
	return rest.String(), cmd.ProcessState.ExitCode()
}

func TestSignalsStopInOrder(t *testing.T) {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := command(t, nil)
		lines := start(t, cmd)
		until(t, lines, `"working"`)
		require.NoError(t, cmd.Process.Signal(signal))
		rest, status := end(t, cmd, lines)
		assert.Equal(t, 0, status, rest)
		assert.Contains(t, rest, "client closed")
		assert.Contains(t, rest, `"msg":"stopped"`)
	}
}

// TestLinesOfGoPackages: they are lines of the process' log, without what peers have sent.
func TestLinesOfGoPackages(t *testing.T) {
	cmd := command(t, []string{"BIRD_BEHAVIOUR=careless"})
	lines := start(t, cmd)
	until(t, lines, `"level":"warn"`)
	assert.Contains(t, lines.Text(), `"msg":"a Go package logged a line","text":"Unsolicited response received on idle HTTP channel starting with ...","left_out":0}`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, status := end(t, cmd, lines)
	assert.Equal(t, 0, status)
	assert.NotContains(t, rest, "1234")
}

// TestHangupReadsTheConfigurationAgain: a faulty one changes nothing and says why.
func TestHangupReadsTheConfigurationAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bird.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write("behaviour: good")
	cmd := command(t, nil, "-config.file", file)
	lines := start(t, cmd)
	until(t, lines, `"working"`)
	for _, step := range []struct{ text, logs string }{
		{"behaviour: better", `"worker changes","behaviour":"better"`},
		{"behavior: worse", "did you mean behaviour?"},
		{"", "the file is empty"},
		{"behaviour: refused", "the worker does not like it"},
		{"behaviour: best", `"worker changes","behaviour":"best"`},
	} {
		write(step.text)
		require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
		until(t, lines, step.logs)
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, status := end(t, cmd, lines)
	assert.Equal(t, 0, status)
}

// TestPanicInAChangeStopsInOrder: nobody knows what was changed.
func TestPanicInAChangeStopsInOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bird.yaml")
	require.NoError(t, os.WriteFile(file, []byte("behaviour: good"), 0o600))
	cmd := command(t, nil, "-config.file", file)
	lines := start(t, cmd)
	until(t, lines, `"working"`)
	require.NoError(t, os.WriteFile(file, []byte("behaviour: panicking"), 0o600))
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	rest, status := end(t, cmd, lines)
	assert.Equal(t, 1, status)
	assert.Contains(t, rest, "changing the configuration: panic: the change panics")
	assert.Contains(t, rest, "app_test.go", "the stack")
	assert.Contains(t, rest, "client closed")
}

func TestHangupOfAServiceThatCannotChange(t *testing.T) {
	cmd := command(t, []string{"BIRD_BEHAVIOUR=deaf"})
	lines := start(t, cmd)
	until(t, lines, `"working"`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	until(t, lines, "at its start only")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	_, status := end(t, cmd, lines)
	assert.Equal(t, 0, status)
}

// TestLogReaderThatEnds: Ctrl-C reaches the reader of a pipe as well, such as tee, which ends
// first.
func TestLogReaderThatEnds(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "closed")
	cmd := command(t, []string{"BIRD_CLOSED=" + closed})
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd.Stderr = w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	until(t, bufio.NewScanner(r), `"working"`)
	require.NoError(t, r.Close())
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.NoError(t, cmd.Wait(), "status 0")
	assert.FileExists(t, closed, "the client was closed")
}

// TestLogReaderThatStopsReading: a pager, or a terminal after Ctrl-S, holds up every line. It must
// not hold up the stop.
func TestLogReaderThatStopsReading(t *testing.T) {
	stuck := func(behaviour string) (*exec.Cmd, string) {
		closed := filepath.Join(t.TempDir(), "closed")
		cmd := command(t, []string{"BIRD_BEHAVIOUR=" + behaviour, "BIRD_CLOSED=" + closed})
		r, w, err := os.Pipe()
		require.NoError(t, err)
		t.Cleanup(func() { _ = errors.Join(r.Close(), w.Close()) })
		cmd.Stderr = w
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill() })
		until(t, bufio.NewScanner(r), `"working"`)
		// Not w itself: whether it blocks is the process' affair.
		fill, err := syscall.Open(fmt.Sprintf("/proc/self/fd/%d", w.Fd()), syscall.O_WRONLY|syscall.O_NONBLOCK, 0)
		require.NoError(t, err)
		defer func() { _ = syscall.Close(fill) }()
		for _, size := range []int{4096, 1} {
			for err = nil; err == nil; {
				_, err = syscall.Write(fill, make([]byte, size))
			}
			require.ErrorIs(t, err, syscall.EAGAIN)
		}
		return cmd, closed
	}
	cmd, closed := stuck("good")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	assert.FileExists(t, closed)

	cmd, _ = stuck("hung")
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	require.Error(t, cmd.Wait())
	assert.Equal(t, 1, cmd.ProcessState.ExitCode())
}

// TestFileThatDoesNotAnswer: reading it, at the start or again, does not keep the process from its
// stop.
func TestFileThatDoesNotAnswer(t *testing.T) {
	dir := t.TempDir()
	pipe, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "bird.yaml")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	opened := func() { // returns once the process reads it
		w, err := os.OpenFile(pipe, os.O_WRONLY, 0)
		require.NoError(t, err)
		t.Cleanup(func() { _ = w.Close() })
	}
	cmd := command(t, nil, "-config.file", pipe)
	lines := start(t, cmd)
	opened()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, status := end(t, cmd, lines)
	assert.Equal(t, 1, status)
	assert.Equal(t, "bird: terminated while the configuration was being read\n", rest)

	require.NoError(t, os.WriteFile(file, []byte("behaviour: good"), 0o600))
	cmd = command(t, nil, "-config.file", file)
	lines = start(t, cmd)
	until(t, lines, `"working"`)
	require.NoError(t, os.Rename(pipe, file))
	pipe = file
	require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
	opened()
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, status = end(t, cmd, lines)
	assert.Equal(t, 0, status, rest)
	assert.Contains(t, rest, "client closed")
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	cmd := command(t, []string{"BIRD_BEHAVIOUR=hung", "BIRD_SHUTDOWN_TIMEOUT=1h"})
	lines := start(t, cmd)
	until(t, lines, `"working"`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	until(t, lines, `"hanging"`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, status := end(t, cmd, lines)
	assert.Equal(t, 1, status)
	assert.Contains(t, rest, "bird: second signal (terminated), exiting at once without finishing the stop")
}

func TestHungActorFailsTheStop(t *testing.T) {
	cmd := command(t, []string{"BIRD_BEHAVIOUR=hung", "BIRD_SHUTDOWN_TIMEOUT=100ms"})
	lines := start(t, cmd)
	until(t, lines, `"working"`)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	rest, status := end(t, cmd, lines)
	assert.Equal(t, 1, status)
	assert.Contains(t, rest, "worker has not stopped within 100ms; not stopped either: http, client, admin")
}

func TestExitStatusAndOutput(t *testing.T) {
	for name, test := range map[string]struct {
		environ, args []string
		status        int
		stdout        string
		stderr        []string
	}{
		"failing actor":   {[]string{"BIRD_BEHAVIOUR=failing"}, nil, 1, "", []string{"actor worker: the worker is broken", "client closed"}},
		"panicking actor": {[]string{"BIRD_BEHAVIOUR=panicking"}, nil, 1, "", []string{"actor worker: panic: the worker panics", "app_test.go"}},
		"shutdown":        {nil, []string{"-extra"}, 0, "", []string{"client closed"}},
		"console":         {[]string{"BIRD_LOG_FORMAT=console"}, []string{"-extra"}, 0, "", []string{"info\tlistening\t{\"server\": \"http\""}},
		"log level":       {nil, []string{"-extra", "-log.level", "error"}, 0, "", nil},
		"version":         {nil, []string{"-version"}, 0, "bird version ", nil},
		"check":           {nil, []string{"-config.check"}, 0, "bird: the configuration is valid (defaults)\n", nil},
		"check of faults": {[]string{"BIRD_ADMIN_LISTEN=x", "BIRD_SHUTDOWN_TIMEOUT=-1s"}, []string{"-config.check"}, 1, "", []string{
			"bird: 2 faults in the configuration (environment)\n  admin.listen: must be host:port", "\n  shutdown_timeout: must be > 0, got -1s ($BIRD_SHUTDOWN_TIMEOUT)\n",
		}},
		"connect": {nil, []string{"-config.connect"}, 0,
			"bird: the configuration is valid (defaults), checking servers, topics and permissions:\n  behaviour good: ok\nbird: 0 of 1 failed\n", nil},
		"connect, bad": {[]string{"BIRD_BEHAVIOUR=failing"}, []string{"-config.connect"}, 1, "  behaviour failing: failed: it is bad\nbird: 1 of 1 failed\n", nil},
		"setup": {[]string{"BIRD_TOKN=1"}, []string{"-setup"}, 0, "bird: its objects at Pulsar (defaults), + missing, - replaced:\nbird: nothing to change\n",
			[]string{"did you mean BIRD_TOKEN?"}},
		"plan, bad":         {[]string{"BIRD_BEHAVIOUR=failing"}, []string{"-setup.plan"}, 1, "", []string{"bird: it is bad\n"}},
		"plan, no admin":    {[]string{"BIRD_BEHAVIOUR=no admin_url"}, []string{"-setup.plan"}, 1, "", []string{"bird: pulsar.admin_url: must be set for -setup"}},
		"start with faults": {[]string{"BIRD_LOG_LEVEL=x"}, nil, 1, "", []string{"bird: 1 fault in the configuration (environment)\n  log.level: must be one of"}},
		"not running":       {[]string{"BIRD_ADMIN_LISTEN=127.0.0.1:1"}, []string{"-ready"}, 1, "", []string{"bird: not ready: dial tcp 127.0.0.1:1"}},
		"any port":          {[]string{"BIRD_ADMIN_LISTEN=127.0.0.1:0"}, []string{"-ready"}, 1, "", []string{"bird: admin.listen has port 0"}},
		"faults, and a variable that sets nothing": {[]string{"BIRD_LOG_LEVEL=x", "BIRD_ADMIN_LISTN=y"}, nil, 1, "", []string{
			"bird: warning: the environment variable BIRD_ADMIN_LISTN sets no key; did you mean BIRD_ADMIN_LISTEN?\nbird: 1 fault in the configuration (environment)\n",
		}},
		"print":            {[]string{"BIRD_TOKEN=hunter2", "BIRD_TOKN=1"}, []string{"-config.print"}, 0, "token: <redacted> # BIRD_TOKEN\n", []string{"did you mean BIRD_TOKEN?"}},
		"set up and check": {nil, []string{"-setup", "-config.check"}, 2, "", []string{"-setup together with a flag that does something else", "usage: bird [flags]"}},
		"usage":            {nil, []string{"-nonsense"}, 2, "", []string{"flag provided but not defined: -nonsense", "usage: bird [flags]"}},
		"help":             {nil, []string{"-help"}, 0, "", []string{"A bird.", "-config.file file", "-extra", "BIRD_LOG_LEVEL"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := command(t, test.environ, test.args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			var exit *exec.ExitError
			if err != nil {
				require.ErrorAs(t, err, &exit)
			}
			assert.Equal(t, test.status, cmd.ProcessState.ExitCode(), stderr.String())
			if test.stdout == "" {
				assert.Empty(t, stdout.String())
			}
			assert.Contains(t, stdout.String(), test.stdout)
			for _, want := range test.stderr {
				assert.Contains(t, stderr.String(), want)
			}
			if test.stderr == nil {
				assert.Empty(t, stderr.String())
			}
			assert.NotContains(t, stdout.String()+stderr.String(), "hunter2")
		})
	}
}

func TestReadyFromTheCommandLine(t *testing.T) {
	var broken atomic.Bool
	core, logs := observer.New(zap.InfoLevel)
	p := program()
	p.Build = func(_ context.Context, rt *app.Runtime, _ config) error {
		rt.Check("pulsar", func(context.Context) error {
			if broken.Load() {
				return errors.New("it is unavailable")
			}
			return nil
		})
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	cfg := defaults()
	cfg.Admin.Listen = "0.0.0.0:0" // as in containers
	go func() { ended <- app.RunProgram(ctx, p, cfg, zap.New(core)) }()
	defer func() { cancel(); <-ended }()
	_, port, err := net.SplitHostPort(address(t, logs, "admin"))
	require.NoError(t, err)
	for _, host := range []string{"127.0.0.1", "0.0.0.0", ""} {
		ask := func() (string, error) {
			out, err := command(t, []string{"BIRD_ADMIN_LISTEN=" + net.JoinHostPort(host, port)}, "-ready").CombinedOutput()
			return string(out), err
		}
		broken.Store(false)
		require.Eventually(t, func() bool { out, err := ask(); return err == nil && strings.Contains(out, `"status":"ready"`) }, await.Patience, time.Millisecond)
		broken.Store(true)
		out, err := ask()
		assert.Error(t, err)
		assert.Contains(t, out, `bird: not ready: 503 Service Unavailable: {"status":"not ready"`)
		assert.Contains(t, out, "it is unavailable")
	}
}

// get returns the status and body of an admin page.
func get(t *testing.T, address, path string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	require.NoError(t, err)
	transport := &http.Transport{DisableKeepAlives: true}
	resp, err := transport.RoundTrip(req)
	require.NoError(t, err)
	defer func() { require.NoError(t, resp.Body.Close()) }()
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(body)
}

// address waits for a server's "listening" and returns the address logged.
func address(t *testing.T, logs *observer.ObservedLogs, server string) string {
	t.Helper()
	var address string
	require.Eventually(t, func() bool {
		for _, entry := range logs.FilterMessage("listening").FilterField(zap.String("server", server)).All() {
			address, _ = entry.ContextMap()["address"].(string)
		}
		return address != ""
	}, await.Patience, time.Millisecond)
	return address
}

func TestAdminServerFromStartToEnd(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	checked, building, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
	p := program()
	p.Build = func(ctx context.Context, rt *app.Runtime, _ config) error {
		rt.Check("pulsar", func(context.Context) error { return nil })
		rt.Handle("/nest", "what is in the nest", http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("egg")) }))
		close(checked)
		<-building
		ln, err := rt.Listen(ctx, "http", "http.listen", "127.0.0.1:0")
		if err != nil {
			return err
		}
		rt.Serve("http", ln, &http.Server{Handler: http.NotFoundHandler(), ReadHeaderTimeout: await.Patience})
		rt.Go("slow", func(ctx context.Context) error {
			<-ctx.Done()
			<-release
			return nil
		})
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cfg := defaults()
	cfg.Token = "hunter2"
	ended := make(chan error, 1)
	go func() { ended <- app.RunProgram(ctx, p, cfg, zap.New(core)) }()

	admin := address(t, logs, "admin")
	assert.NotContains(t, admin, ":0")
	<-checked // the admin server answers before Build has begun
	status, body := get(t, admin, "/-/ready")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	assert.JSONEq(t, `{"status":"starting","checks":{"pulsar":{"ok":true}}}`, body)
	_, metrics := get(t, admin, "/metrics")
	assert.Contains(t, metrics, "\naviary_ready 0\n")

	close(building)
	require.Eventually(t, func() bool { status, _ := get(t, admin, "/-/ready"); return status == http.StatusOK }, await.Patience, time.Millisecond)
	_, metrics = get(t, admin, "/metrics")
	assert.Contains(t, metrics, "\naviary_ready 1\n")
	for path, want := range map[string][]string{
		"/-/healthy":                     {"healthy"},
		"/-/config":                      {"token: <redacted>", "shutdown_timeout: 30s", "behaviour: good"},
		"/metrics":                       {"go_goroutines", "process_cpu_seconds_total", `aviary_build_info{`, `service="bird"`},
		"/debug/pprof/goroutine?debug=1": {"goroutine profile"},
	} {
		status, body := get(t, admin, path)
		assert.Equal(t, http.StatusOK, status, path)
		for _, w := range want {
			assert.Contains(t, body, w, path)
		}
		assert.NotContains(t, body, "hunter2")
	}
	status, body = get(t, admin, "/")
	assert.Equal(t, http.StatusOK, status)
	for _, page := range []string{"/metrics ", "/-/healthy ", "/-/ready ", "/-/config ", "/debug/pprof/ ", "/nest "} {
		assert.Contains(t, body, "\n"+page, "the index names each page")
	}
	status, body = get(t, admin, "/metric")
	assert.Equal(t, http.StatusNotFound, status)
	assert.Contains(t, body, "\n/metrics ", "a wrong path is answered with the right ones")
	status, body = get(t, admin, "/nest")
	assert.Equal(t, http.StatusOK, status)
	assert.Equal(t, "egg", body)
	status, _ = get(t, address(t, logs, "http"), "/")
	assert.Equal(t, http.StatusNotFound, status, "the service's own server answers")

	cancel()
	require.Eventually(t, func() bool { return logs.FilterMessage("stopping").Len() == 1 }, await.Patience, time.Millisecond)
	status, body = get(t, admin, "/-/ready")
	assert.Equal(t, http.StatusServiceUnavailable, status)
	var answer struct{ Status string }
	require.NoError(t, json.Unmarshal([]byte(body), &answer))
	assert.Equal(t, "draining", answer.Status)

	close(release)
	require.NoError(t, <-ended)
}

func TestTakenAddressFailsTheStart(t *testing.T) {
	ln, err := app.Listen(t.Context(), zap.NewNop(), "other", "other.listen", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	cfg := defaults()
	cfg.Admin.Listen = ln.Addr().String()
	err = app.RunProgram(t.Context(), program(), cfg, zap.NewNop())
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	assert.ErrorContains(t, err, "cannot start: admin.listen: cannot listen on "+ln.Addr().String()+": address already in use")
}

// A failure is told once, by the key that has to be changed.
func TestFailureIsLoggedOnce(t *testing.T) {
	ln, err := app.Listen(t.Context(), zap.NewNop(), "other", "other.listen", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, ln.Close()) }()
	cmd := command(t, []string{"BIRD_ADMIN_LISTEN=" + ln.Addr().String()})
	rest, status := end(t, cmd, start(t, cmd))
	assert.Equal(t, 1, status)
	assert.Equal(t, 1, strings.Count(rest, "admin.listen: cannot listen on "+ln.Addr().String()+": address already in use"), rest)
	assert.Equal(t, 1, strings.Count(rest, "address already in use"), rest)
	assert.Contains(t, rest, `"msg":"stopped after a failure"`)
}

func TestServeFinishesOrCutsOff(t *testing.T) {
	for name, test := range map[string]struct {
		grace time.Duration
		fault string
	}{
		"finishes": {await.Patience, ""},
		"cuts off": {time.Millisecond, "requests still in flight after 1ms were cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			ln, err := app.Listen(t.Context(), zap.NewNop(), "x", "x.listen", "127.0.0.1:0")
			require.NoError(t, err)
			arrived, release := make(chan struct{}), make(chan struct{})
			handled := make(chan struct{})
			server := &http.Server{ReadHeaderTimeout: await.Patience, Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				defer close(handled)
				close(arrived)
				select {
				case <-release:
					_, _ = io.WriteString(w, "done")
				case <-req.Context().Done():
				}
			})}
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- app.Serve(ctx, ln, server, test.grace) }()

			answered := make(chan string, 1)
			go func() {
				req, _ := http.NewRequestWithContext(context.WithoutCancel(ctx), http.MethodGet, "http://"+ln.Addr().String(), nil)
				resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
				if err != nil {
					answered <- err.Error()
					return
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				answered <- string(body)
			}()
			<-arrived
			cancel()
			if test.fault == "" {
				close(release)
				require.NoError(t, <-served)
				assert.Equal(t, "done", <-answered)
			} else {
				err := <-served
				require.ErrorContains(t, err, test.fault)
				require.ErrorIs(t, err, context.DeadlineExceeded)
				assert.Contains(t, <-answered, "EOF")
			}
			<-handled
		})
	}
}

func TestServeReportsABrokenListener(t *testing.T) {
	ln, err := app.Listen(t.Context(), zap.NewNop(), "x", "x.listen", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	err = app.Serve(t.Context(), ln, &http.Server{ReadHeaderTimeout: await.Patience}, time.Second)
	assert.ErrorContains(t, err, "cannot serve HTTP on ")
}
