package stack

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// emptyMachine has no servers and no programs but a go, which knows its version and that of the
// module of Prometheus, and does for the rest what the cases of the script say.
func emptyMachine(t *testing.T, cases string) *Stack {
	t.Helper()
	bin := t.TempDir()
	nice, err := exec.LookPath("nice")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(nice, filepath.Join(bin, "nice")))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte(`#!/bin/sh
case "$1 $2" in
"mod edit") echo '{"Require": [{"Path": "`+prometheusModule+`", "Version": "v0.1.0"}]}' ;;
"env GOVERSION") echo go1.99 ;;
`+cases+"esac\n"), 0o755))
	t.Setenv("PATH", bin)
	t.Setenv("HOME", t.TempDir())
	s, err := New(Config{CacheDir: t.TempDir(), BuildNice: 19, Log: testWriter{t}})
	require.NoError(t, err)
	return s
}

func TestMissing(t *testing.T) {
	s := emptyMachine(t, "")
	names := []string{"pulsar", "prometheus", "kafka", "rabbitmq", "pulsar-geo", "redis-geo", "prometheus-current"}
	missing, err := s.Missing(t.Context(), names...)
	require.NoError(t, err)
	var told []string
	for _, d := range missing {
		told = append(told, d.String())
	}
	text := strings.Join(told, "\n")
	assert.Equal(t, 1, strings.Count(text, "Pulsar 4"), "for both services")
	assert.Contains(t, text, "Pulsar 4.0.8 from the Maven repository, 246 MB, to Maven's local repository and "+s.cache)
	assert.Contains(t, text, "the Debian package prometheus, 23 MB")
	assert.Contains(t, text, "Kafka 4.1.1")
	assert.Contains(t, text, "rabbitmq-server") // of which a part may be here
	assert.Contains(t, text, "redis-server, 2 MB")
	assert.Contains(t, text, "Go modules of a current Prometheus")

	// What is here is not told.
	home, err := os.UserHomeDir()
	require.NoError(t, err)
	for _, file := range []string{
		filepath.Join(home, ".m2/repository/org/apache/pulsar/pulsar-server-distribution/4.0.8/pulsar-server-distribution-4.0.8-bin.tar.gz"),
		filepath.Join(s.cache, "tools/prometheus-v0.1.0-go1.99/prometheus"), filepath.Join(os.Getenv("PATH"), "redis-server"),
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(t, os.WriteFile(file, nil, 0o755))
	}
	missing, err = s.Missing(t.Context(), "pulsar", "redis-geo", "prometheus-current")
	require.NoError(t, err)
	assert.Empty(t, missing)
	missing, err = s.Missing(t.Context(), "kafka")
	require.NoError(t, err)
	require.Len(t, missing, 1, "not in the local repository")
	_, err = s.Missing(t.Context(), "mysql")
	require.ErrorContains(t, err, "unknown service")
}

// TestSizeOfKafka: nothing else notices that the size that people are told is wrong. Pulsar's is in
// its progress, too.
func TestSizeOfKafka(t *testing.T) {
	s, err := New(Config{})
	require.NoError(t, err)
	if err := s.Fetch(t.Context(), "kafka"); err != nil {
		Unavailable(t, "kafka", err)
	}
	home, err := s.kafkaHome(t.Context())
	require.NoError(t, err)
	var size int64
	require.NoError(t, filepath.WalkDir(home, func(_ string, d fs.DirEntry, err error) error {
		info, infoErr := d.Info()
		size += info.Size()
		return errors.Join(err, infoErr)
	}))
	assert.InEpsilon(t, kafkaArtifact().Size, size, 0.1)
}

// TestBuildOfPrometheus: urgent for nobody, of what is fetched; an attempt that fails is repeated.
func TestBuildOfPrometheus(t *testing.T) {
	source := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(source, "VERSION"), []byte("3.99\n"), 0o644))
	synctest.Test(t, func(t *testing.T) {
		note := filepath.Join(t.TempDir(), "note")
		s := emptyMachine(t, `
"mod download") echo "go: downloading it" >&2; if test -e "`+note+`"; then echo '{"Dir": "`+source+`"}'; else : >"`+note+`"; echo '{"Error": "reset"}'; exit 1; fi ;;
"list -deps") if test -e "`+note+`2"; then echo fmt; else : >"`+note+`2"; exit 1; fi ;;
build*) test -e "`+note+`2" || exit 1; while [ "$1" != -o ]; do shift; done; nice >"$2" ;;
`)
		require.NoError(t, s.Fetch(t.Context(), "prometheus-current"))
		built, err := os.ReadFile(filepath.Join(s.cache, "tools/prometheus-v0.1.0-go1.99/prometheus"))
		require.NoError(t, err)
		assert.Equal(t, "19\n", string(built))
		lines, err := s.Up(t.Context(), "prometheus-current")
		require.NoError(t, err)
		assert.Equal(t, []string{"PROMETHEUS_CURRENT_BIN=" + filepath.Join(s.cache, "tools/prometheus-v0.1.0-go1.99/prometheus")}, lines)
		require.NoError(t, s.Down(context.WithoutCancel(t.Context())))
	})
}

// TestBuildOfPrometheusFails: with the reason, and nothing is left.
func TestBuildOfPrometheusFails(t *testing.T) {
	source := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(source, "VERSION"), []byte("3.99\n"), 0o644))
	download := `"mod download") echo '{"Dir": "` + source + `"}' ;;` + "\n"
	for name, c := range map[string]struct {
		cases string
		want  []string
	}{
		"download": {`*) echo '{"Error": "no route to host"}'; exit 1 ;;` + "\n", []string{"no network?", "after 3 attempts", "no route to host"}},
		"modules":  {download + `"list -deps") echo no route to host; exit 1 ;;` + "\n", []string{"no network?", "after 3 attempts", "no route to host"}},
		"build":    {download + `build*) while [ "$1" != -o ]; do shift; done; : >"$2"; echo undefined: x; exit 1 ;;` + "\n", []string{"cannot build it", "undefined: x"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := emptyMachine(t, c.cases)
				err := s.Fetch(t.Context(), "prometheus-current")
				for _, text := range c.want {
					require.ErrorContains(t, err, text)
				}
				left, err := filepath.Glob(filepath.Join(s.cache, "tools", "*"))
				require.NoError(t, err)
				assert.Equal(t, []string{filepath.Join(s.cache, "tools/prometheus-v0.1.0-go1.99.lock")}, left)
			})
		})
	}
}
