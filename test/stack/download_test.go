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

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// emptyMachine has no servers and no programs but a go that knows the module of Prometheus.
func emptyMachine(t *testing.T, goScript string) *Stack {
	t.Helper()
	bin := t.TempDir()
	nice, err := exec.LookPath("nice")
	require.NoError(t, err)
	require.NoError(t, os.Symlink(nice, filepath.Join(bin, "nice")))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "go"), []byte("#!/bin/sh\n"+goScript), 0o755))
	t.Setenv("PATH", bin)
	t.Setenv("HOME", t.TempDir())
	s, err := New(Config{CacheDir: t.TempDir(), BuildNice: 19, Log: testWriter{t}})
	require.NoError(t, err)
	return s
}

func TestMissing(t *testing.T) {
	s := emptyMachine(t, "echo v0.1.0\n")
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
		filepath.Join(s.cache, "tools/prometheus-v0.1.0/prometheus"), filepath.Join(os.Getenv("PATH"), "redis-server"),
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

// TestBuildOfPrometheus: urgent for nobody; a failure is told with its reason.
func TestBuildOfPrometheus(t *testing.T) {
	source := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(source, "VERSION"), []byte("3.99\n"), 0o644))
	s := emptyMachine(t, `case "$1 $2" in
"list -m") echo v0.1.0 ;;
"mod download") echo "go: downloading it" >&2; echo '{"Dir": "`+source+`"}' ;;
build*) while [ "$1" != -o ]; do shift; done; nice >"$2"; exit ${FAILS:-0} ;;
esac
`)
	require.NoError(t, s.Fetch(t.Context(), "prometheus-current"))
	built, err := os.ReadFile(filepath.Join(s.cache, "tools/prometheus-v0.1.0/prometheus"))
	require.NoError(t, err)
	assert.Equal(t, "19\n", string(built))
	lines, err := s.Up(t.Context(), "prometheus-current")
	require.NoError(t, err)
	assert.Equal(t, []string{"PROMETHEUS_CURRENT_BIN=" + filepath.Join(s.cache, "tools/prometheus-v0.1.0/prometheus")}, lines)
	require.NoError(t, s.Down(context.WithoutCancel(t.Context())))

	s = emptyMachine(t, `case "$1 $2" in
"list -m") echo v0.1.0 ;;
*) echo '{"Error": "no route to host"}'; exit 1 ;;
esac
`)
	err = s.Fetch(t.Context(), "prometheus-current")
	require.ErrorContains(t, err, "no network?")
	require.ErrorContains(t, err, "no route to host")
}
