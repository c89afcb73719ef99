package install

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/process"
)

func fakeArchive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var buf bytes.Buffer
	zw := gzip.NewWriter(&buf)
	tw := tar.NewWriter(zw)
	for name, text := range files {
		require.NoError(t, tw.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg}))
		_, err := tw.Write([]byte(text))
		require.NoError(t, err)
	}
	require.NoError(t, tw.Close())
	require.NoError(t, zw.Close())
	return buf.Bytes()
}

func TestInstallHealsItself(t *testing.T) {
	good := fakeArchive(t, map[string]string{"server-1/bin/run": "run", "server-1/lib/a.jar": "jar a", "server-1/lib/b.jar": "jar b"})
	sum := sha512.Sum512(good)
	a := Artifact{Coordinates: "x:server:1", File: "server.tar.gz", Folder: "server-1", Sha512: hex.EncodeToString(sum[:]), Size: int64(len(good))}
	cache := t.TempDir()
	var fetched []bool // the argument fresh of each fetch
	local := good      // what the local repository serves
	fetch := func(_ context.Context, a Artifact, dir string, fresh bool, _ *process.Progress) error {
		fetched = append(fetched, fresh)
		data := local
		if fresh {
			data = good
		}
		return os.WriteFile(filepath.Join(dir, a.File), data, 0o644)
	}
	log := process.NewProgress(io.Discard)
	var home string
	installs := func(t *testing.T, want ...bool) {
		t.Helper()
		fetched = nil
		var err error
		home, err = Installer{cache, log}.Distribution(t.Context(), a, fetch)
		require.NoError(t, err)
		assert.Equal(t, want, fetched)
		for name, text := range map[string]string{"bin/run": "run", "lib/a.jar": "jar a", "lib/b.jar": "jar b"} {
			got, err := os.ReadFile(filepath.Join(home, name))
			require.NoError(t, err)
			assert.Equal(t, text, string(got))
		}
		left, err := filepath.Glob(filepath.Join(cache, "servers", "*.work"))
		require.NoError(t, err)
		assert.Empty(t, left)
	}

	installs(t, false)
	installs(t) // from the cache
	info, err := os.Stat(filepath.Join(home, "bin", "run"))
	require.NoError(t, err)
	assert.NotZero(t, info.Mode()&0o100, "executable")

	require.NoError(t, os.Remove(filepath.Join(home, "lib", "b.jar")))
	installs(t, false)
	require.NoError(t, os.Truncate(filepath.Join(home, "lib", "a.jar"), 2))
	installs(t, false)
	require.NoError(t, os.Remove(filepath.Join(home, markerName)))
	installs(t, false)
	// A process that died while unpacking.
	require.NoError(t, os.MkdirAll(home+".work/server-1/lib", 0o755))
	require.NoError(t, os.RemoveAll(home))
	installs(t, false)
	// What the tools and this package write into the folder later is not damage.
	require.NoError(t, os.MkdirAll(filepath.Join(home, "logs"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(home, "logs", "perf.log"), []byte("x"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(home, ClassDataName+"x.jsa"), []byte("x"), 0o644))
	installs(t)
	// A damaged copy in the local repository is gone around.
	require.NoError(t, os.RemoveAll(home))
	local = good[:len(good)/2]
	installs(t, false, true)
}

func TestInstallRefusesWrongArchive(t *testing.T) {
	a := Artifact{File: "server.tar.gz", Folder: "server-1", Sha512: "00"}
	cache := t.TempDir()
	fetch := func(_ context.Context, a Artifact, dir string, _ bool, _ *process.Progress) error {
		return os.WriteFile(filepath.Join(dir, a.File), []byte("other"), 0o644)
	}
	_, err := Installer{cache, process.NewProgress(nil)}.Distribution(t.Context(), a, fetch)
	require.ErrorContains(t, err, "has SHA-512")
	assert.NoDirExists(t, filepath.Join(cache, "servers", "server-1"))

	gone := errors.New("no network")
	_, err = Installer{cache, process.NewProgress(nil)}.Distribution(t.Context(), a, func(context.Context, Artifact, string, bool, *process.Progress) error { return gone })
	require.ErrorIs(t, err, gone)

	a.Size = 1 << 60
	_, err = Installer{cache, process.NewProgress(nil)}.Distribution(t.Context(), a, fetch)
	require.ErrorContains(t, err, "not enough disk")
}

func TestUnpackRefusesEntriesOutside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.tar.gz")
	require.NoError(t, os.WriteFile(path, fakeArchive(t, map[string]string{"../evil": "x"}), 0o644))
	require.ErrorContains(t, unpack(t.Context(), path, t.TempDir()), "leaves the archive")
}

func TestInstallOfJars(t *testing.T) {
	// What sha512sum says of the two, in order of their names.
	sum := sha512.Sum512([]byte(sumLine("jar a", "a.jar") + sumLine("jar b", "b.jar")))
	a := Artifact{File: "server-1", Folder: "server-1", Sha512: hex.EncodeToString(sum[:])}
	cache := t.TempDir()
	var fetched []bool
	damaged := false // the copy in the local repository
	fetch := func(_ context.Context, a Artifact, dir string, fresh bool, _ *process.Progress) error {
		fetched = append(fetched, fresh)
		b := "jar b"
		if damaged && !fresh {
			b = "jar"
		}
		dir = filepath.Join(dir, a.File)
		return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755),
			os.WriteFile(filepath.Join(dir, "b.jar"), []byte(b), 0o644), os.WriteFile(filepath.Join(dir, "a.jar"), []byte("jar a"), 0o644))
	}
	installs := func(want ...bool) string {
		fetched = nil
		home, err := Installer{cache, process.NewProgress(nil)}.Distribution(t.Context(), a, fetch)
		require.NoError(t, err)
		assert.Equal(t, want, fetched)
		return home
	}
	home := installs(false)
	installs()
	require.NoError(t, os.Remove(filepath.Join(home, "b.jar")))
	damaged = true
	installs(false, true)
	installs()
}

func sumLine(text, name string) string {
	sum := sha512.Sum512([]byte(text))
	return hex.EncodeToString(sum[:]) + "  " + name + "\n"
}
