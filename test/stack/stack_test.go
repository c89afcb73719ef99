package stack

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack/install"
	"github.com/aviaryhq/aviary/test/stack/process"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
)

// eventually waits for a condition that other processes bring about.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	require.NoError(t, process.Poll(ctx, 10*time.Millisecond, func() (bool, error) { return done(), nil }), what)
}

// testStack returns a stack with a state of its own and the machine's downloads.
func testStack(t *testing.T, cfg Config) *Stack {
	t.Helper()
	cfg.Checkout, cfg.Log, cfg.Owned = t.TempDir(), testWriter{t}, true
	s, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Down(context.Background()))
		require.NoError(t, os.RemoveAll(s.dir))
		require.NoError(t, os.RemoveAll(s.lockPath()))
		require.NoError(t, os.RemoveAll(s.alivePath()))
	})
	return s
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// pulsarMemory is what the user wants.
var pulsarMemory = os.Getenv("PULSAR_MEM")

// TestMain has the JVMs compile with their first compiler only: servers here do next to nothing, and
// their starts take a third less of the processors.
func TestMain(m *testing.M) {
	for variable, memory := range map[string]string{"PULSAR_MEM": "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=1g", "KAFKA_MEM": "-Xmx512m"} {
		if os.Getenv(variable) == "" {
			_ = os.Setenv(variable, memory+quickStart)
		}
	}
	os.Exit(m.Run())
}

// TestUpAndDown starts all services that this machine can have, side by side, and stops them.
func TestUpAndDown(t *testing.T) {
	s := testStack(t, Config{RedisConf: map[string]string{"requirepass": "p/a:s@s", "maxclients": "123"}})
	parts := []struct {
		services []string
		lines    int
		answers  func(t *testing.T, lines []string)
	}{
		{[]string{"pulsar"}, 2, pulsarAnswers},
		{[]string{"kafka"}, 1, kafkaAnswers},
		{[]string{"rabbitmq"}, 1, rabbitMQAnswers},
		{[]string{"redis", "redis-geo"}, 4, redisAnswers},
	}
	var services []string
	missing := make([]error, len(parts))
	for i, part := range parts {
		if missing[i] = s.Fetch(t.Context(), part.services...); missing[i] == nil {
			services = append(services, part.services...)
		}
	}
	lines, err := s.Up(t.Context(), services...)
	require.NoError(t, err)
	again, err := s.Up(t.Context(), services...)
	require.NoError(t, err)
	assert.Equal(t, lines, again)
	for i, part := range parts {
		t.Run(part.services[0], func(t *testing.T) {
			if missing[i] != nil {
				Unavailable(t, part.services[0], missing[i])
			}
			part.answers(t, lines[:part.lines])
		})
		if missing[i] == nil {
			lines = lines[part.lines:]
		}
	}
	require.Empty(t, lines)

	var processes []process.ID
	for _, service := range services {
		rec, err := s.loadRecord(service)
		require.NoError(t, err)
		want := map[string]int{"rabbitmq": 2, "redis-geo": 3}[service] // the node and its port mapper; a zone each
		assert.Len(t, rec.Processes, max(1, want), service)
		processes = append(processes, rec.Processes...)
	}
	require.NoError(t, s.Down(t.Context()))
	for _, p := range processes {
		assert.False(t, p.Alive())
	}
	left, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	assert.Empty(t, left)
	require.NoError(t, s.Down(t.Context()), "twice")
}

// pulsarAnswers is a part of TestUpAndDown.
func pulsarAnswers(t *testing.T, lines []string) {
	t.Helper()
	require.True(t, strings.HasPrefix(lines[0], "PULSAR_URL=pulsar://127.0.0.1:"), lines[0])
	adminURL, found := strings.CutPrefix(lines[1], "PULSAR_ADMIN_URL=")
	require.True(t, found, lines[1])
	require.NoError(t, pulsaradmin.New(adminURL, "").Healthy(t.Context()))
}

// TestUpReusesAndReplaces what runs, as the settings allow, and what has died.
func TestUpReusesAndReplaces(t *testing.T) {
	t.Parallel()
	s := testStack(t, Config{})
	if err := s.Fetch(t.Context(), "redis"); err != nil {
		Unavailable(t, "redis", err)
	}
	lines, err := s.Up(t.Context(), "redis")
	require.NoError(t, err)
	first, err := s.loadRecord("redis")
	require.NoError(t, err)
	again, err := s.Up(t.Context(), "redis")
	require.NoError(t, err)
	assert.Equal(t, lines, again)
	second, err := s.loadRecord("redis")
	require.NoError(t, err)
	assert.Equal(t, first.Processes, second.Processes)

	s.cfg.RedisConf = map[string]string{"maxclients": "7"}
	_, err = s.Up(t.Context(), "redis")
	require.ErrorContains(t, err, "run `stack down` first")
	s.cfg.RedisConf = nil

	require.NoError(t, first.Processes[0].Kill())
	replaced, err := s.Up(t.Context(), "redis")
	require.NoError(t, err)
	require.Len(t, replaced, 1)
	require.NoError(t, redisHealthy(t.Context(), strings.TrimPrefix(replaced[0], "REDIS_URL=")))
	third, err := s.loadRecord("redis")
	require.NoError(t, err)
	assert.NotEqual(t, first.Processes, third.Processes)
	require.NoError(t, s.Down(t.Context()))
	assert.False(t, third.alive())

	// What settings are is a matter of the service.
	for name, change := range map[string]func(){
		"pulsar":     func() { s.cfg.PulsarConf = map[string]string{"journalSyncData": "false"} },
		"pulsar-geo": func() { s.cfg.PulsarConf = map[string]string{"journalSyncData": "true"} },
		"redis-geo":  func() { s.cfg.RedisConf = map[string]string{"maxclients": "8"} },
	} {
		before := s.settings(name)
		change()
		assert.NotEqual(t, before, s.settings(name), name)
	}
}

func TestFailedStartLeavesNoProcess(t *testing.T) {
	t.Parallel()
	s := testStack(t, Config{PulsarConf: map[string]string{"compactionServiceFactoryClassName": "no.such.Class"}})
	if err := s.Fetch(t.Context(), "pulsar"); err != nil {
		Unavailable(t, "pulsar", err)
	}
	_, err := s.Up(t.Context(), "pulsar")
	require.ErrorContains(t, err, "ended while starting")
	require.ErrorContains(t, err, "no.such.Class")
	rec, err := s.loadRecord("pulsar")
	require.NoError(t, err)
	assert.Nil(t, rec)
}

func TestPrivateServerThroughFaults(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := PrivatePulsar(t, Conf(map[string]string{"maxMessageSize": "1048576"}), Memory("-Xmx512m"))
	ns := srv.Namespace(t)
	topic := srv.Topic(t, ns, 0)
	subscribe(t, srv, topic)

	const messages = 20
	for i := range messages {
		require.NoError(t, srv.admin.Produce(ctx, topic, fmt.Sprintf("m%d", i)))
	}
	require.EqualValues(t, messages, srv.Stats(t, topic).Subscriptions["s"].MsgBacklog)

	conf, err := os.ReadFile(filepath.Join(srv.Daemon.(*broker).dir, "standalone.conf"))
	require.NoError(t, err)
	assert.Contains(t, string(conf), "\nmaxMessageSize=1048576\n")

	t.Run("kill and start", func(t *testing.T) {
		url, pid := srv.URL(), srv.PID()
		require.NotZero(t, pid)
		require.NoError(t, srv.Kill())
		require.NoError(t, srv.Kill(), "twice")
		require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
		_, err := net.Dial("tcp", strings.TrimPrefix(url, "pulsar://"))
		require.Error(t, err)

		require.NoError(t, srv.Start(ctx))
		require.NoError(t, srv.Start(ctx), "twice")
		assert.Equal(t, url, srv.URL())
		assert.NotEqual(t, pid, srv.PID())
		assert.EqualValues(t, messages, srv.Stats(t, topic).Subscriptions["s"].MsgBacklog)
		for i := range messages {
			var body string
			require.NoError(t, srv.Admin(ctx, http.MethodGet, fmt.Sprintf("%s/subscription/s/position/%d", pulsaradmin.TopicPath(topic), i+1), nil, &body))
			assert.Equal(t, fmt.Sprintf("m%d", i), body)
		}
	})
	t.Run("pause and resume", func(t *testing.T) {
		require.NoError(t, srv.Pause())
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, srv.admin.Healthy(short), context.DeadlineExceeded)
		require.NoError(t, srv.Resume())
		require.NoError(t, srv.admin.Healthy(ctx))
		require.NoError(t, srv.admin.Produce(ctx, topic, "after"))
	})
	t.Run("unload and terminate", func(t *testing.T) {
		srv.Unload(t, topic)
		eventually(t, "topic back", func() bool {
			return srv.admin.Produce(ctx, topic, "back") == nil
		})
		srv.Terminate(t, topic)
		require.Error(t, srv.admin.Produce(ctx, topic, "late"))

		partitioned := srv.Topic(t, ns, 3)
		eventually(t, "three partitions", func() bool { return len(srv.Stats(t, partitioned).Partitions) == 3 })
		srv.Terminate(t, partitioned)
		require.Error(t, srv.admin.Produce(ctx, partitioned, "late"))
	})
	t.Run("stop while paused", func(t *testing.T) {
		require.NoError(t, srv.Pause())
		require.NoError(t, srv.Stop(ctx))
		require.NoError(t, srv.Stop(ctx), "twice")
		require.Error(t, srv.Pause())
		assert.Zero(t, srv.PID())
	})
}

func TestSharedServer(t *testing.T) {
	t.Setenv("PULSAR_MEM", pulsarMemory) // other packages use it, too
	srv := Pulsar(t)
	require.NoError(t, srv.admin.Healthy(t.Context()))
	assert.Equal(t, srv.URL(), Pulsar(t).URL())
	require.ErrorIs(t, srv.Kill(), process.ErrNotOwned)

	var ns string
	t.Run("namespace", func(t *testing.T) {
		ns = srv.Namespace(t)
		topic := srv.Topic(t, ns, 2)
		require.NoError(t, srv.admin.Produce(t.Context(), topic, "x"))
		assert.NotZero(t, srv.Stats(t, topic).StorageSize)
	})
	var all []string
	require.NoError(t, srv.Admin(t.Context(), http.MethodGet, "/admin/v2/namespaces/public", nil, &all))
	assert.NotContains(t, all, ns, "deleted with the test")
}

func TestPrivateGeo(t *testing.T) {
	t.Parallel()
	pair := PrivateGeo(t)
	var shared string
	t.Run("messages cross and wait for a cluster that is down", func(t *testing.T) {
		shared = pair.Namespace(t)
		topic := pair.Topic(t, shared, 2)
		for _, side := range pair.group().Clusters {
			subscribe(t, side, topic)
		}
		backlog := func(side *PulsarServer) int64 { return side.Stats(t, topic).Subscriptions["s"].MsgBacklog }
		for i, from := range pair.group().Clusters {
			require.NoError(t, from.admin.Produce(t.Context(), topic, "x"))
			for _, side := range pair.group().Clusters {
				eventually(t, "message in both clusters", func() bool { return backlog(side) == int64(i+1) })
			}
		}
		require.NoError(t, pair.B.Stop(t.Context()))
		require.NoError(t, pair.A.admin.Produce(t.Context(), topic, "while b is down"))
		require.NoError(t, pair.B.Start(t.Context()))
		eventually(t, "caught up", func() bool { return backlog(pair.B) == 3 })
	})
	for _, side := range pair.group().Clusters {
		var all []string
		require.NoError(t, side.Admin(t.Context(), http.MethodGet, "/admin/v2/namespaces/"+geoTenant, nil, &all))
		assert.NotContains(t, all, shared, "deleted with the test")
	}
}

// subscribe creates the subscription "s" that keeps every message from now on.
func subscribe(t *testing.T, srv *PulsarServer, topic string) {
	t.Helper()
	earliest := map[string]int{"ledgerId": -1, "entryId": -1}
	require.NoError(t, srv.Admin(t.Context(), http.MethodPut, pulsaradmin.TopicPath(topic)+"/subscription/s", earliest, nil))
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	n := l.Addr().(*net.TCPAddr).Port
	_, err = process.FixedPort(t.TempDir(), n, "-pulsar.port")
	require.ErrorContains(t, err, fmt.Sprintf("port %d is in use by process %d", n, os.Getpid()))
	require.ErrorContains(t, err, "-pulsar.port")
	assert.NotContains(t, err.Error(), "\n")
}

func TestReservedPortsDiffer(t *testing.T) {
	cache := t.TempDir()
	first, err := process.ReservePort(cache)
	require.NoError(t, err)
	held, err := process.LockPort(cache, first.Number)
	require.NoError(t, err)
	assert.Nil(t, held.Lock, "reserved")
	assert.Less(t, first.Number, process.EphemeralStart())
	require.NoError(t, first.Lock.Close())
	free, err := process.LockPort(cache, first.Number)
	require.NoError(t, err)
	require.NotNil(t, free.Lock)
	require.NoError(t, free.Lock.Close())
}

func TestJavaErrors(t *testing.T) {
	s := testStack(t, Config{CacheDir: t.TempDir()})
	t.Setenv("JAVA_HOME", "")
	t.Setenv("PATH", "")
	_, err := s.Up(t.Context(), "pulsar")
	require.ErrorContains(t, err, "pulsar: java not found: install Java 17")
	assert.NotContains(t, err.Error(), "\n")

	home := t.TempDir()
	t.Setenv("JAVA_HOME", home)
	_, err = install.FindJava(t.Context())
	require.ErrorContains(t, err, "JAVA_HOME has no bin/java")
	require.NoError(t, os.MkdirAll(filepath.Join(home, "bin"), 0o755))
	old := "#!/bin/sh\necho 'openjdk version \"11.0.21\" 2023-10-17' >&2\n"
	require.NoError(t, os.WriteFile(filepath.Join(home, "bin", "java"), []byte(old), 0o755))
	_, err = install.FindJava(t.Context())
	require.ErrorContains(t, err, "is Java 11: the servers need Java 17 or newer")
}

func TestMavenErrors(t *testing.T) {
	a := install.Artifact{Coordinates: "no.such:thing:1:tar.gz", Size: 1e6}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	err := install.Maven(t.Context(), a, t.TempDir(), true, process.NewProgress(nil))
	require.ErrorContains(t, err, "mvn not found: install Maven")

	offline := "#!/bin/sh\necho x >>" + bin + "/tried\necho '[INFO] Scanning'\necho '[ERROR] Failed to execute goal: Network is unreachable'\necho '[ERROR] more'\nexit 1\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "mvn"), []byte(offline), 0o755))
	synctest.Test(t, func(t *testing.T) {
		err := install.Maven(t.Context(), a, t.TempDir(), true, process.NewProgress(nil))
		require.ErrorContains(t, err, "no network")
		require.ErrorContains(t, err, "after 3 attempts")
		require.ErrorContains(t, err, "Network is unreachable")
		assert.NotContains(t, err.Error(), "\n")
	})
	tried, err := os.ReadFile(filepath.Join(bin, "tried"))
	require.NoError(t, err)
	assert.Equal(t, "x\nx\nx\n", string(tried))
}

// TestAptIsTriedAgain: the second attempt installs the package.
func TestAptIsTriedAgain(t *testing.T) {
	bin := t.TempDir()
	for _, name := range []string{"env", "true", "grep"} {
		path, err := exec.LookPath(name)
		require.NoError(t, err)
		require.NoError(t, os.Symlink(path, filepath.Join(bin, name)))
	}
	t.Setenv("PATH", bin)
	script := "#!/bin/sh\nwhile [ $# -gt 0 ] && [ $1 != install ]; do shift; done\n[ $# -gt 0 ] || exit 0\necho x >>" + bin + "/tried\n" +
		"if [ $(grep -c x " + bin + "/tried) -lt ${NEEDED:-4} ]; then echo 'E: Failed to fetch'; exit 100; fi\n"
	for name, text := range map[string]string{"apt-get": script, "sudo": "#!/bin/sh\nshift; exec \"$@\"\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(text), 0o755))
	}
	synctest.Test(t, func(t *testing.T) {
		apt := install.Installer{Cache: t.TempDir(), Log: process.NewProgress(nil)}
		require.NoError(t, apt.Debian(t.Context(), "no-such-package"))
		t.Setenv("NEEDED", "100")
		err := apt.Debian(t.Context(), "no-such-package")
		require.EqualError(t, err, "apt-get cannot install no-such-package (no network?): after 3 attempts: E: Failed to fetch")
	})
}

func TestUnknownService(t *testing.T) {
	s := testStack(t, Config{CacheDir: t.TempDir()})
	_, err := s.Up(t.Context(), "pulsar", "mysql")
	require.EqualError(t, err, `unknown service "mysql"; known: pulsar, pulsar-geo, kafka, rabbitmq, redis, redis-geo, prometheus, prometheus-current, victoria-metrics, nutcracker`)
	require.ErrorContains(t, s.Fetch(t.Context()), "no service named")
}

func TestJavaMajor(t *testing.T) {
	for out, want := range map[string]int{
		`openjdk version "17.0.15" 2025-04-15`: 17,
		`java version "1.8.0_392"`:             8,
		`openjdk version "21-ea" 2023-09-19`:   21,
	} {
		got, err := install.JavaMajor(out)
		require.NoError(t, err)
		assert.Equal(t, want, got, out)
	}
	_, err := install.JavaMajor("Segmentation fault")
	require.Error(t, err)
}

func TestRewriteConf(t *testing.T) {
	got := rewriteConf("# a=0\na=1\nb=\nc=3", map[string]string{"a": "10", "b": "20", "z": "9", "y": "8"})
	assert.Equal(t, "# a=0\na=10\nb=20\nc=3\ny=8\nz=9\n", got)
}

func TestTopicPath(t *testing.T) {
	assert.Equal(t, "/admin/v2/persistent/t/n/a%2Fb", pulsaradmin.TopicPath("persistent://t/n/a/b"))
	assert.Equal(t, "/admin/v2/non-persistent/t/n/x", pulsaradmin.TopicPath("non-persistent://t/n/x"))
}

func TestUniqueName(t *testing.T) {
	t.Run("ä name/with *signs* and a length that is beyond reason", func(t *testing.T) {
		name := uniqueName(t)
		assert.Regexp(t, `^[a-z0-9_-]+$`, name)
		assert.LessOrEqual(t, len(name), 51)
		assert.NotEqual(t, name, uniqueName(t))
	})
}
