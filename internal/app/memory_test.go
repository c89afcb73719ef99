package app

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

func TestMemoryOfControlGroups(t *testing.T) {
	const (
		v2      = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
		v1      = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
		v1Inner = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
	)
	for name, test := range map[string]struct {
		mounts, own string
		files       map[string]string
		want        int64
	}{
		"version 2, in a container": {v2, "0::/\n", map[string]string{"memory.max": "1000\n", "memory.high": "max\n"}, 1000},
		"version 2, a parent's limit": {v2, "0::/system.slice/x.service\n", map[string]string{
			"system.slice/x.service/memory.max": "max\n", "system.slice/memory.max": "500\n",
		}, 500},
		"version 2, throttled before": {v2, "0::/x\n", map[string]string{"x/memory.max": "1000\n", "x/memory.high": "800\n"}, 800},
		"version 2, none":             {v2, "0::/x\n", map[string]string{"x/memory.max": "max\n"}, 0},
		"version 2, a path outside":   {v2[:len("30 23 0:26 /")] + "pod" + v2[len("30 23 0:26 /"):], "0::/../other\n", map[string]string{"memory.max": "7\n"}, 7},
		"version 1": {v1, "4:memory:/a/b\n0::/\n", map[string]string{
			"memory/a/b/memory.limit_in_bytes": "2000\n", "memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 2000},
		"version 1, a parent's limit": {v1, "4:cpu,memory:/a/b\n", map[string]string{
			"memory/a/b/memory.limit_in_bytes": "9223372036854771712\n", "memory/a/memory.limit_in_bytes": "3000\n",
		}, 3000},
		"version 1, in a container": {v1Inner, "4:memory:/docker/abc\n", map[string]string{"memory/memory.limit_in_bytes": "4000\n"}, 4000},
		"version 1, below it":       {v1Inner, "4:memory:/docker/abc/x\n", map[string]string{"memory/x/memory.limit_in_bytes": "40\n"}, 40},
		"neither":                   {"1 0 8:1 / / rw - ext4 /dev/sda rw\n", "0::/\n", nil, 0},
		"nonsense":                  {"a - b\n\n" + v2, "nonsense\n", map[string]string{"memory.max": "?"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := fstest.MapFS{"proc/self/mountinfo": {Data: []byte(test.mounts)}, "proc/self/cgroup": {Data: []byte(test.own)}}
			for file, text := range test.files {
				root["sys/fs/cgroup/"+file] = &fstest.MapFile{Data: []byte(text)}
			}
			got, ok := cgroupLimit(root)
			assert.Equal(t, test.want, got)
			assert.Equal(t, test.want > 0, ok)
		})
	}
	_, ok := cgroupLimit(fstest.MapFS{})
	assert.False(t, ok, "another system")
}

// TestMemoryLimitFollowsTheBounds: at the start, at each change, and back at the end.
func TestMemoryLimitFollowsTheBounds(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(-1)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
		defer cancel()
		for _, need := range []int64{60 << 20, 50 << 20, 70 << 20} {
			rt.TuneMemory(need)
			assert.Equal(t, need, debug.SetMemoryLimit(-1))
		}
		if group, ok := cgroupLimit(os.DirFS("/")); ok {
			rt.TuneMemory(group)
			assert.Equal(t, group/10*9, debug.SetMemoryLimit(-1), "what the control group leaves")
		}
		t.Setenv("GOMEMLIMIT", "1GiB")
		now := debug.SetMemoryLimit(-1)
		rt.TuneMemory(1 << 20)
		assert.Equal(t, now, debug.SetMemoryLimit(-1), "the user's own")
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, before, debug.SetMemoryLimit(-1))
}

// TestMemoryIsSpared: the limit is the usual while little is alive, and follows what is.
func TestMemoryIsSpared(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	const mib = 1 << 20
	before := debug.SetMemoryLimit(-1)
	limit := func(is func(mib int64) bool) bool {
		runtime.GC()
		return is(debug.SetMemoryLimit(-1) / mib)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
		defer cancel()
		rt.SpareMemory(256 * mib) // the race detector's runtime takes 80 by itself
		rt.TuneMemory(800 * mib)
		assert.EqualValues(t, 256, debug.SetMemoryLimit(-1)/mib)
		alive := make([]byte, 250*mib)
		assert.Eventually(t, func() bool { return limit(func(n int64) bool { return n >= 375 && n < 550 }) }, await.Patience, time.Millisecond)
		runtime.KeepAlive(alive)
		alive = make([]byte, 700*mib)
		assert.Eventually(t, func() bool { return limit(func(n int64) bool { return n == 800 }) }, await.Patience, time.Millisecond, "at most what is needed")
		runtime.KeepAlive(alive)
		assert.Eventually(t, func() bool { return limit(func(n int64) bool { return n == 256 }) }, await.Patience, time.Millisecond)
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, before, debug.SetMemoryLimit(-1))
	runtime.GC()
	assert.Equal(t, before, debug.SetMemoryLimit(-1), "it has ended")
}

// TestMemoryBesideTheHeapIsSpared: stacks take nothing of the room that the heap has.
func TestMemoryBesideTheHeapIsSpared(t *testing.T) {
	t.Setenv("GOGC", "")
	t.Setenv("GOMEMLIMIT", "")
	const mib = 1 << 20
	ctx, cancel := context.WithCancel(t.Context())
	_, err := run(ctx, func(_ context.Context, rt *Runtime) error {
		defer cancel()
		end := make(chan struct{})
		var deep, running sync.WaitGroup
		for range 48 {
			deep.Add(1)
			running.Go(func() { descend(1<<20, func() { deep.Done(); <-end }) })
		}
		deep.Wait()
		alive := make([]byte, 40*mib)
		rt.SpareMemory(64 * mib)
		rt.TuneMemory(400 * mib)
		assert.Eventually(t, func() bool { runtime.GC(); return debug.SetMemoryLimit(-1) >= (48+60)*mib }, await.Patience, time.Millisecond)
		runtime.KeepAlive(alive)
		close(end)
		running.Wait()
		return nil
	})
	require.NoError(t, err)
}

// descend calls f with at least so many bytes of stack.
//
//go:noinline
func descend(bytes int, f func()) {
	var frame [4096]byte
	if bytes <= 0 {
		f()
	} else {
		descend(bytes-len(frame), f)
	}
	runtime.KeepAlive(&frame)
}

func TestTheMoreMemoryTheFewerMultiples(t *testing.T) {
	for limit, want := range map[int64]int{1: 400, 64 << 20: 400, 256 << 20: 400, 512 << 20: 200, 1 << 30: 100, 64 << 30: 100} {
		assert.Equal(t, want, percentFor(limit))
	}
}
