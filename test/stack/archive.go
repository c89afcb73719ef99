package stack

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// An artifact is a server's distribution: a tar.gz that holds one folder, or a folder of jars.
type artifact struct {
	coordinates string // of a folder of jars: several, with spaces between
	localPath   string // folder in a local Maven repository
	file        string // what is fetched: the archive, or the folder itself
	folder      string // the folder inside the archive
	sha512      string // of the archive, or of the folder's listing as [listing] has it
	size        int64
	unpacked    int64 // rough, for the check of free space
}

// fetchFunc puts the archive, or the folder of jars, into dir. fresh asks for a source without any cache in between.
type fetchFunc func(ctx context.Context, a artifact, dir string, fresh bool, log *progress) error

// install returns the folder of the unpacked artifact and fetches and unpacks it if the cache does not hold it whole.
// A folder gets its final name only when it is complete, and is measured against its marker on each use, so an
// interrupted unpacking or a file deleted later mends itself here.
func install(ctx context.Context, cache string, a artifact, fetch fetchFunc, log *progress) (string, error) {
	home := filepath.Join(cache, "servers", a.folder)
	if intact(home, a) {
		return home, nil
	}
	unlock, err := lockFile(ctx, filepath.Join(cache, "servers", a.folder+".lock"), log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if intact(home, a) { // by the process that held the lock
		return home, nil
	}
	if err := checkDisk(cache, 2*a.size+a.unpacked); err != nil {
		return "", err
	}
	work := home + ".work"
	if err := os.RemoveAll(work); err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	archive := filepath.Join(work, a.file)
	if err := fetch(ctx, a, work, false, log); err != nil {
		return "", err
	}
	if err := verify(archive, a.sha512); err != nil {
		log.printf("%v, fetching it again past the local Maven repository", err)
		if err := os.RemoveAll(archive); err != nil {
			return "", err
		}
		if err := fetch(ctx, a, work, true, log); err != nil {
			return "", err
		}
		if err := verify(archive, a.sha512); err != nil {
			return "", fmt.Errorf("%w: the repository does not hold what this version of Aviary was built for", err)
		}
	}
	if a.file != a.folder {
		log.printf("unpacking %s", a.file)
		if err := unpack(ctx, archive, work); err != nil {
			return "", fmt.Errorf("cannot unpack %s: %w", a.file, err)
		}
	}
	unpacked := filepath.Join(work, a.folder)
	if err := mark(unpacked, a); err != nil {
		return "", err
	}
	if err := os.RemoveAll(home); err != nil {
		return "", err
	}
	return home, os.Rename(unpacked, home)
}

const markerName = ".complete"

// marker describes a complete folder: what it was made of and how much there must be of it.
func marker(home string, a artifact) (string, error) {
	files, bytes := 0, int64(0)
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(home, path)
		if d.IsDir() && rel == "logs" { // written by the distribution's own tools
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() || rel == markerName || strings.HasPrefix(rel, classDataName) {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		files++
		bytes += info.Size()
		return nil
	})
	return fmt.Sprintf("%s %d files %d bytes\n", a.sha512, files, bytes), err
}

func mark(home string, a artifact) error {
	text, err := marker(home, a)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, markerName), []byte(text), 0o644)
}

func intact(home string, a artifact) bool {
	want, err := os.ReadFile(filepath.Join(home, markerName))
	if err != nil {
		return false
	}
	got, err := marker(home, a)
	return err == nil && got == string(want)
}

func verify(path, sum string) error {
	got, err := digest(path)
	if err != nil {
		return err
	}
	if got != sum {
		return fmt.Errorf("%s has SHA-512 %.12s, want %.12s", filepath.Base(path), got, sum)
	}
	return nil
}

// digest returns the SHA-512 of a file, or of a folder's listing.
func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha512.New()
	info, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case info.IsDir():
		text, err := listing(path)
		if err != nil {
			return "", err
		}
		_, _ = io.WriteString(h, text) // never fails
	default:
		if _, err := io.Copy(h, f); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// listing is what sha512sum prints of a folder's files in the order of their names: `LC_ALL=C sha512sum * | sha512sum`
// makes the digest of a new version.
func listing(dir string) (string, error) {
	entries, err := os.ReadDir(dir) // in order
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, e := range entries {
		sum, err := digest(filepath.Join(dir, e.Name()))
		if err != nil {
			return "", err
		}
		text.WriteString(sum + "  " + e.Name() + "\n")
	}
	return text.String(), nil
}

func checkDisk(dir string, need int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return err
	}
	if free := int64(st.Bavail) * st.Bsize; free < need {
		return fmt.Errorf("not enough disk for the download: %s has %d MB free, %d MB are needed; free some, or move the cache with XDG_CACHE_HOME", dir, free/1e6, need/1e6)
	}
	return nil
}

func unpack(ctx context.Context, archive, dir string) error {
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	zr, err := gzip.NewReader(bufio.NewReaderSize(f, 1<<20))
	if err != nil {
		return err
	}
	for tr := tar.NewReader(zr); ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackEntry(tr, h, dir); err != nil {
			return err
		}
	}
}

func unpackEntry(r io.Reader, h *tar.Header, dir string) error {
	if !filepath.IsLocal(h.Name) {
		return fmt.Errorf("entry leaves the archive: %q", h.Name)
	}
	path := filepath.Join(dir, h.Name)
	switch h.Typeflag {
	case tar.TypeDir:
		return os.MkdirAll(path, 0o755)
	case tar.TypeReg:
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, h.FileInfo().Mode().Perm()|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	default:
		return fmt.Errorf("entry of unexpected type %q: %q", h.Typeflag, h.Name)
	}
}
