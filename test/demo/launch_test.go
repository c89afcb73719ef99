package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/demo/display"
	"github.com/aviaryhq/aviary/test/stack/install"
)

// stage is what a launch uses, without servers and services: it writes down what happens.
type stage struct {
	mu      sync.Mutex
	events  []string
	out     bytes.Buffer                           // mu guards it
	fetched map[string]func(context.Context) error // nil: at once
	launch  *launch
	fails   string // the flow whose watch fails at once with a cancellation that nobody asked for
	lost    int64  // records of each flow
}

func (s *stage) happens(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

func (s *stage) all() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.events, "\n")
}

// Write is what is shown.
func (s *stage) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(text)
}

func (s *stage) Missing(context.Context, ...string) ([]install.Download, error) { return nil, nil }
func (s *stage) Down(context.Context) error                                     { s.happens("down"); return nil }

func (s *stage) Fetch(ctx context.Context, names ...string) error {
	for _, name := range names {
		if fetch := s.fetched[name]; fetch != nil {
			if err := fetch(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *stage) Up(_ context.Context, names ...string) (lines []string, err error) {
	s.happens("up %s", strings.Join(names, " "))
	for _, name := range names {
		lines = append(lines, name+"=here")
	}
	return lines, nil
}

// act is a flow that does nothing.
type act struct {
	stage *stage
	name  string
}

func (a *act) watch(ctx context.Context) error {
	a.stage.happens("%s watched", a.name)
	if a.name == a.stage.fails {
		return fmt.Errorf("%s: %w", a.name, context.Canceled)
	}
	<-ctx.Done()
	return ctx.Err()
}

func (a *act) verify(ctx context.Context) ([]display.Check, error) {
	return []display.Check{{What: a.name, Want: 1 + a.stage.lost, Got: 1}}, ctx.Err()
}
func (a *act) stop(context.Context) error { a.stage.happens("%s stopped", a.name); return nil }

// newStage has three flows: the first shows data a second after its start, the second needs the
// same server and one more, the third joins.
func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{fetched: map[string]func(context.Context) error{}}
	screen := display.New(s)
	flows := []flow{
		{service: "one", servers: []string{"a"}}, {service: "two", servers: []string{"a", "b"}},
		{service: "late", servers: []string{"a", "c"}, joins: true},
	}
	first := newFirstData(screen)
	for i := range flows {
		name, wants := flows[i].service, flows[i].servers
		flows[i].start = func(_ context.Context, env *environment) (running, error) {
			for _, server := range wants {
				if env.servers[server] != "here" {
					return nil, errors.New("without " + server)
				}
			}
			s.happens("%s starts", name)
			if name == "one" {
				time.AfterFunc(time.Second, func() { s.happens("data"); first.from(name) })
			}
			return &act{stage: s, name: name}, nil
		}
	}
	env := environment{screen: screen, first: first, binaries: new(binaries)}
	s.launch = &launch{servers: s, flows: flows, env: env, up: map[string]bool{}}
	return s
}

// TestFirstDataBeforeAllElse: the servers of the second flow do not slow the first one down, and
// the one that joins is not waited for.
func TestFirstDataBeforeAllElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.fetched["c"] = func(context.Context) error { time.Sleep(4 * time.Minute); return nil } // a build
		ctx, stop := context.WithCancel(t.Context())
		d, ended := &demo{screen: s.launch.env.screen}, make(chan error)
		go func() { ended <- d.show(ctx, s.launch) }()
		time.Sleep(3 * time.Minute)
		events := strings.Split(s.all(), "\n")
		assert.Equal(t, []string{"up a", "one starts", "one watched", "data", "up b", "two starts", "two watched"}, events)
		assert.Contains(t, s.text(), "== running until Ctrl-C")
		assert.Regexp(t, `== first data after [0-9.ms]+, from one`, s.text())

		time.Sleep(2 * time.Minute)
		assert.Equal(t, append(events, "up c", "late starts", "late watched"), strings.Split(s.all(), "\n"))
		assert.Contains(t, s.text(), "== late: its servers are ready")
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		require.NoError(t, errors.Join(s.launch.stop(t.Context())...))
		assert.True(t, strings.HasSuffix(s.all(), "late stopped\ntwo stopped\none stopped"), s.all())
	})
}

// text is what the screen shows.
func (s *stage) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.String()
}

// TestBuildThatFailsEndsNothing, and is told.
func TestBuildThatFailsEndsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.fetched["c"] = func(context.Context) error { return errors.New("no network") }
		ctx, stop := context.WithCancel(t.Context())
		d, ended := &demo{screen: s.launch.env.screen}, make(chan error)
		go func() { ended <- d.show(ctx, s.launch) }()
		time.Sleep(time.Minute)
		assert.Contains(t, s.text(), "== late does not start, the other services go on: no network")
		assert.Contains(t, s.text(), "== running until Ctrl-C")
		assert.NotContains(t, s.all(), "late")
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
	})
}

// TestCtrlCDuringTheBuild ends it, and with it the demo, at once.
func TestCtrlCDuringTheBuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.fetched["c"] = func(ctx context.Context) error { <-ctx.Done(); return errors.New("killed") }
		ctx, stop := context.WithCancel(t.Context())
		d, ended := &demo{screen: s.launch.env.screen}, make(chan error)
		go func() { ended <- d.show(ctx, s.launch) }()
		time.Sleep(time.Minute)
		began := time.Now()
		stop()
		require.ErrorIs(t, <-ended, context.Canceled)
		assert.Zero(t, time.Since(began))
		assert.NotContains(t, s.text(), "does not start")
	})
}

// TestSmokeAwaitsAll: what joins a demo later is verified in a smoke, and a build that fails fails
// it.
func TestSmokeAwaitsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.launch.awaitsJoining = true
		s.fetched["c"] = func(context.Context) error { time.Sleep(4 * time.Minute); return nil }
		d := &demo{screen: s.launch.env.screen, smoke: true, period: time.Second}
		require.NoError(t, d.show(t.Context(), s.launch))
		for _, name := range []string{"one", "two", "late"} {
			assert.Contains(t, s.text(), "\n  "+name+" ")
		}
		assert.Less(t, strings.Index(s.text(), "\n  two "), strings.Index(s.text(), "\n  late "))
	})
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.launch.awaitsJoining = true
		s.fetched["c"] = func(context.Context) error { return errors.New("no network") }
		d := &demo{screen: s.launch.env.screen, smoke: true, period: time.Second}
		require.EqualError(t, d.show(t.Context(), s.launch), "no network")
	})
}

// TestSmokePassesOnlyVerified: neither a difference nor a cancellation of one flow's own counts as the
// stop of the watchers, which follows the verification.
func TestSmokePassesOnlyVerified(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.launch.awaitsJoining, s.lost = true, 1
		d := &demo{screen: s.launch.env.screen, smoke: true, period: time.Second}
		require.EqualError(t, d.show(t.Context(), s.launch), "3 checks failed")
	})
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.launch.awaitsJoining, s.fails = true, "two"
		d := &demo{screen: s.launch.env.screen, smoke: true, period: time.Minute}
		require.EqualError(t, d.show(t.Context(), s.launch), "two: context canceled")
		assert.NotContains(t, s.text(), "want")
	})
}

// TestServersThatCannotBeHad end a demo, unless nobody has waited for them.
func TestServersThatCannotBeHad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t)
		s.fetched["b"] = func(context.Context) error { return errors.New("b is unavailable") }
		d := &demo{screen: s.launch.env.screen}
		require.EqualError(t, d.show(t.Context(), s.launch), "b is unavailable")
		assert.NotContains(t, s.all(), "two")
	})
}

// TestWhatWillBeFetched is told, and nothing where all is there.
func TestWhatWillBeFetched(t *testing.T) {
	s := newStage(t)
	d := &demo{screen: s.launch.env.screen}
	require.NoError(t, d.announce(t.Context(), s, s.launch.flows))
	assert.Empty(t, s.text())
	require.NoError(t, d.announce(t.Context(), &without{s}, s.launch.flows))
	assert.Equal(t, "== this machine lacks some servers: fetching about 260 MB\n==   a, 250 MB, to here\n==   c, 10 MB, to there\n", s.text())
}

// without is a stage that has not all that is needed.
type without struct{ *stage }

func (without) Missing(_ context.Context, names ...string) ([]install.Download, error) {
	var missing []install.Download
	if slices.Contains(names, "a") && slices.Contains(names, "c") {
		missing = []install.Download{{What: "a", Size: 250e6, To: "here"}, {What: "c", Size: 9.5e6, To: "there"}}
	}
	return missing, nil
}

// TestFolderOfAKilledRun is deleted by the next one, that of a failure stays.
func TestFolderOfAKilledRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "run")
	folder := func() string {
		dir := filepath.Join(t.TempDir(), folderPrefix+"1")
		require.NoError(t, os.Mkdir(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nightingale.log"), nil, 0o600))
		return dir
	}
	killed, failed := folder(), folder()
	run, err := openRun(file)
	require.NoError(t, err)
	require.NoError(t, run.note(killed))
	_, err = openRun(file)
	require.ErrorContains(t, err, "already running")
	assert.DirExists(t, killed)
	require.NoError(t, run.Close()) // as the kernel does

	run, err = openRun(file)
	require.NoError(t, err)
	assert.NoDirExists(t, killed)
	require.NoError(t, run.note(failed))
	require.NoError(t, run.close())
	run, err = openRun(file)
	require.NoError(t, err)
	assert.DirExists(t, failed)
	require.NoError(t, run.close())
}

// TestAge counts from the start of the process, before this program began.
func TestAge(t *testing.T) {
	read := func() (least, most time.Time, since time.Duration) {
		least = time.Now()
		since, err := age()
		require.NoError(t, err)
		return least, time.Now(), since
	}
	least, most, first := read()
	assert.Positive(t, first)
	assert.Less(t, first, time.Hour)
	require.Eventually(t, func() bool { return time.Since(most) > 50*time.Millisecond }, patience, time.Millisecond)
	leastAfter, mostAfter, second := read()
	const clocks = 20 * time.Millisecond // two clocks
	assert.GreaterOrEqual(t, second-first, leastAfter.Sub(most)-clocks)
	assert.LessOrEqual(t, second-first, mostAfter.Sub(least)+clocks)
}

// TestPortsAreGivenOnce: two services that start at the same time prefer the same one.
func TestPortsAreGivenOnce(t *testing.T) {
	var out bytes.Buffer
	p := &ports{screen: display.New(&out)}
	free, err := p.listen("a", 0)
	require.NoError(t, err)
	again, err := p.listen("b", portOf(t, free))
	require.NoError(t, err)
	assert.NotEqual(t, free, again)
	assert.Empty(t, out.String(), "nobody else has it")
}

func portOf(t *testing.T, address string) (port int) {
	t.Helper()
	_, err := fmt.Sscanf(address, "127.0.0.1:%d", &port)
	require.NoError(t, err)
	return port
}

// TestPortInUse is replaced by a free one, and the screen says so.
func TestPortInUse(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer other.Close()
	var out bytes.Buffer
	p := &ports{screen: display.New(&out)}
	address, err := p.listen("sonic-a", portOf(t, other.Addr().String()))
	require.NoError(t, err)
	assert.Equal(t, fmt.Sprintf("== sonic-a: %s is in use; listening on %s\n", other.Addr(), address), out.String())
}

// TestBinaries: the first flow's is there before the others, and each is built once.
func TestBinaries(t *testing.T) {
	b := newBinaries(t.TempDir(), flows())
	require.Len(t, b.batches, 2)
	assert.Equal(t, []string{"nightingale"}, b.batches[0].services)
	assert.ElementsMatch(t, []string{"eventbridge", "pigeonhole", "sonic"}, b.batches[1].services)

	root := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	b.build(ctx, root) // nothing to build there
	_, err := b.path(ctx, "sonic")
	require.ErrorContains(t, err, "cannot build eventbridge, pigeonhole, sonic")
	cancel()
	waiting := newBinaries(t.TempDir(), flows())
	_, err = waiting.path(ctx, "nightingale")
	require.ErrorIs(t, err, context.Canceled)
}
