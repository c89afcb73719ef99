package app

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// journal notes what happens, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) note(line string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, line)
}

// actor waits for its turn to stop, takes a while to finish and notes both.
func (j *journal) actor(name string, takes time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		j.note(name + " told")
		<-time.After(takes)
		j.note(name + " done")
		return nil
	}
}

func (j *journal) closer(name string) func(context.Context) error {
	return func(context.Context) error {
		j.note(name + " closed")
		return nil
	}
}

// run runs build in a runtime with a shutdown timeout of 30 seconds until ctx ends, and returns
// what it logged.
func run(ctx context.Context, build func(context.Context, *Runtime) error) (*observer.ObservedLogs, error) {
	core, logs := observer.New(zapcore.DebugLevel)
	rt := newRuntime("test", zap.New(core), 30*time.Second)
	return logs, rt.run(ctx, func(ctx context.Context) error { return build(ctx, rt) })
}

func wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func TestStagesStopInReverseOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var j journal
		began := time.Now()
		time.AfterFunc(time.Minute, cancel)
		logs, err := run(ctx, func(_ context.Context, rt *Runtime) error {
			rt.OnStop("client", j.closer("client"))
			rt.Go("publisher", j.actor("publisher", 10*time.Second))
			rt.OnStop("flush", j.closer("flush"))
			rt.Go("http", j.actor("http", 10*time.Second))
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, []string{
			"http told", "http done", "flush closed", "publisher told", "publisher done", "client closed",
		}, j.lines)
		assert.Equal(t, 80*time.Second, time.Since(began))
		assert.Equal(t, 1, logs.FilterMessage("stopping").Len())
	})
}

func TestFailuresStopTheProcess(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		actor func(ctx context.Context) error
		want  string
		is    error
	}{
		"an error":              {func(context.Context) error { return boom }, "actor bad: boom", boom},
		"an end without error":  {func(context.Context) error { return nil }, "actor bad: ended unexpectedly", errEarly},
		"a foreign cancelation": {func(context.Context) error { return context.Canceled }, "actor bad: context canceled", context.Canceled},
		"a panic":               {func(context.Context) error { panic("boom") }, "actor bad: panic: boom", nil},
		"a panic with an error": {func(context.Context) error { panic(boom) }, "actor bad: panic: boom", boom},
		"the goroutine's end":   {func(context.Context) error { runtime.Goexit(); return nil }, "actor bad: ended unexpectedly", errEarly},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var j journal
				logs, err := run(t.Context(), func(_ context.Context, rt *Runtime) error {
					rt.OnStop("client", j.closer("client"))
					rt.Go("bad", test.actor)
					rt.Go("good", j.actor("good", time.Second))
					return nil
				})
				require.EqualError(t, err, test.want)
				if test.is != nil {
					require.ErrorIs(t, err, test.is)
				}
				assert.Equal(t, []string{"good told", "good done", "client closed"}, j.lines, "the others stop in order all the same")
				entry := logs.FilterMessage("stopping after a failure").All()
				require.Len(t, entry, 1)
				if strings.HasPrefix(name, "a panic") {
					assert.Contains(t, entry[0].ContextMap()["stack"], "runtime_test.go")
				}
			})
		})
	}
}

func TestEveryFailureIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
			rt.OnStop("first", func(context.Context) error { panic("late") })
			rt.OnStop("second", func(context.Context) error { return errors.New("3 messages were not acknowledged") })
			rt.Go("third", func(ctx context.Context) error {
				<-ctx.Done()
				return errors.New("cannot finish")
			})
			rt.Go("fourth", wait)
			return nil
		})
		assert.EqualError(t, err, "actor third: cannot finish\nstopping second: 3 messages were not acknowledged\nstopping first: panic: late")
	})
}

func TestHungStageIsNamed(t *testing.T) {
	for name, test := range map[string]struct {
		add  func(rt *Runtime, release <-chan struct{})
		want string
	}{
		"actor": {
			func(rt *Runtime, release <-chan struct{}) {
				rt.Go("stuck", func(context.Context) error { <-release; return nil })
			},
			"stuck has not stopped within 30s; not stopped either: below, client",
		},
		"closing function": {
			func(rt *Runtime, release <-chan struct{}) {
				rt.OnStop("stuck", func(context.Context) error { <-release; return nil })
			},
			"stuck has not stopped within 30s; not stopped either: below, client",
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Second, cancel)
				release := make(chan struct{})
				defer close(release)
				began := time.Now()
				closed := false
				_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
					rt.OnStop("client", func(context.Context) error { closed = true; return nil })
					rt.Go("below", wait)
					test.add(rt, release)
					rt.Go("above", wait)
					return nil
				})
				require.EqualError(t, err, test.want)
				assert.Equal(t, 31*time.Second, time.Since(began))
				assert.False(t, closed, "nothing is closed under a stage that still works with it")
			})
		})
	}
}

func TestClosingFunctionKnowsTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var left time.Duration
		_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
			rt.OnStop("client", func(ctx context.Context) error {
				deadline, _ := ctx.Deadline()
				left = time.Until(deadline)
				return nil
			})
			rt.Go("slow", (&journal{}).actor("slow", 10*time.Second))
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, 20*time.Second, left)
	})
}

func TestStart(t *testing.T) {
	boom := errors.New("boom")
	for name, test := range map[string]struct {
		build func(ctx context.Context, rt *Runtime) error
		want  string
	}{
		"fails":                     {func(context.Context, *Runtime) error { return boom }, "cannot start: boom"},
		"panics":                    {func(context.Context, *Runtime) error { panic("boom") }, "cannot start: panic: boom"},
		"is stopped while waiting":  {func(ctx context.Context, _ *Runtime) error { return wait(ctx) }, ""},
		"fails otherwise at a stop": {func(ctx context.Context, _ *Runtime) error { <-ctx.Done(); return boom }, "cannot start: boom"},
		"ends by an actor's failure": {func(ctx context.Context, rt *Runtime) error {
			rt.Go("bad", func(context.Context) error { return boom })
			return wait(ctx)
		}, "actor bad: boom"},
		"shuts itself down": {func(_ context.Context, rt *Runtime) error {
			rt.Shutdown()
			rt.Shutdown()
			return nil
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(time.Second, cancel)
				var j journal
				_, err := run(ctx, func(ctx context.Context, rt *Runtime) error {
					rt.OnStop("client", j.closer("client"))
					return test.build(ctx, rt)
				})
				if test.want == "" {
					require.NoError(t, err)
				} else {
					require.EqualError(t, err, test.want)
				}
				assert.Equal(t, []string{"client closed"}, j.lines, "what was opened is closed")
			})
		})
	}
}

func TestHungStartIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		release := make(chan struct{})
		defer close(release)
		_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
			rt.Go("below", wait)
			<-release
			return nil
		})
		assert.EqualError(t, err, "start has not stopped within 30s; not stopped either: below")
	})
}

func TestRegistrationAfterTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var kept *Runtime
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := run(ctx, func(_ context.Context, rt *Runtime) error { kept = rt; return nil })
		require.NoError(t, err)
		kept.Go("late", func(context.Context) error { t.Error("a late actor was started"); return nil })
		kept.OnStop("late", func(context.Context) error { t.Error("a late closing function was called"); return nil })
		kept.Shutdown()
		synctest.Wait()
	})
}

func readReady(t *testing.T, h http.Handler) (int, readiness) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/-/ready", nil))
	var body readiness
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &body))
	return w.Code, body
}

func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &checkSet{phase: starting}
		var broken error
		h.add("pulsar", func(context.Context) error { return broken })
		h.add("disk", func(context.Context) error { return nil })

		code, body := readReady(t, h)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, readiness{starting, map[string]checkResult{"pulsar": {OK: true}, "disk": {OK: true}}}, body)

		h.set(ready)
		code, body = readReady(t, h)
		assert.Equal(t, http.StatusOK, code)
		assert.Equal(t, ready, body.Status)

		broken = errors.New("no broker")
		code, body = readReady(t, h)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, readiness{notReady, map[string]checkResult{"pulsar": {Error: "no broker"}, "disk": {OK: true}}}, body)

		broken = nil
		h.set(draining)
		h.set(ready) // a start that ends after the stop was asked for
		code, body = readReady(t, h)
		assert.Equal(t, http.StatusServiceUnavailable, code)
		assert.Equal(t, draining, body.Status)
	})
}

func TestChecksAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &checkSet{phase: ready}
		release := make(chan struct{})
		var calls atomic.Int32
		h.add("hangs", func(context.Context) error { calls.Add(1); <-release; return nil })
		h.add("slow", func(ctx context.Context) error { return wait(ctx) })
		h.add("panics", func(context.Context) error { panic("boom") })
		began := time.Now()
		for range 3 {
			code, body := readReady(t, h)
			assert.Equal(t, http.StatusServiceUnavailable, code)
			assert.Equal(t, checkResult{Error: "no answer within 2s"}, body.Checks["hangs"])
			assert.False(t, body.Checks["slow"].OK)
			assert.Equal(t, checkResult{Error: "panic: boom"}, body.Checks["panics"])
		}
		assert.Equal(t, 6*time.Second, time.Since(began), "the checks run side by side, two seconds at most")
		assert.EqualValues(t, 1, calls.Load(), "a check that hangs is not called again")
		close(release)
		synctest.Wait()
		_, body := readReady(t, h)
		assert.True(t, body.Checks["hangs"].OK)
	})
}
