package install

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

	"github.com/aviaryhq/aviary/test/stack/process"
)

// An Artifact is a server's distribution: a tar.gz that holds one folder, or a folder of jars.
type Artifact struct {
	Coordinates string // of a folder of jars: several, with spaces between
	LocalPath   string // folder in a local Maven repository
	File        string // what is fetched: the archive, or the folder itself
	Folder      string // the folder inside the archive
	Sha512      string // of the archive, or of the folder's listing as [listing] has it
	Size        int64
	Unpacked    int64 // rough, for the check of free space
}

// An Installer fetches what servers need into a folder that all checkouts of this machine share.
type Installer struct {
	Cache string
	Log   *process.Progress
}

// fetchFunc puts the archive, or the folder of jars, into dir. fresh asks for a source without any
// cache in between.
type fetchFunc func(ctx context.Context, a Artifact, dir string, fresh bool, log *process.Progress) error

// Distribution returns the folder of the unpacked artifact and fetches and unpacks it if the cache does
// not hold it whole. A folder gets its final name only when it is complete, and is measured against
// its marker on each use, so an interrupted unpacking or a file deleted later mends itself here.
func (i Installer) Distribution(ctx context.Context, a Artifact, fetch fetchFunc) (string, error) {
	cache, log := i.Cache, i.Log
	home := filepath.Join(cache, "servers", a.Folder)
	if intact(home, a) {
		return home, nil
	}
	unlock, err := process.Lock(ctx, filepath.Join(cache, "servers", a.Folder+".lock"), log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if intact(home, a) { // by the process that held the lock
		return home, nil
	}
	if err := checkDisk(cache, 2*a.Size+a.Unpacked); err != nil {
		return "", err
	}
	work := home + unfinished
	if err := os.RemoveAll(work); err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	archive := filepath.Join(work, a.File)
	if err := fetch(ctx, a, work, false, log); err != nil {
		return "", err
	}
	if err := verify(archive, a.Sha512); err != nil {
		log.Printf("%v, fetching it again past the local Maven repository", err)
		if err := os.RemoveAll(archive); err != nil {
			return "", err
		}
		if err := fetch(ctx, a, work, true, log); err != nil {
			return "", err
		}
		if err := verify(archive, a.Sha512); err != nil {
			return "", fmt.Errorf("%w: the repository does not hold what this version of Aviary was built for", err)
		}
	}
	if a.File != a.Folder {
		log.Printf("unpacking %s", a.File)
		if err := unpack(ctx, archive, work); err != nil {
			return "", fmt.Errorf("cannot unpack %s: %w", a.File, err)
		}
	}
	unpacked := filepath.Join(work, a.Folder)
	if err := mark(unpacked, a); err != nil {
		return "", err
	}
	if err := os.RemoveAll(home); err != nil {
		return "", err
	}
	return home, os.Rename(unpacked, home)
}

const markerName = ".complete"

// ClassDataName begins the names of files that are made of a distribution, in its folder.
const ClassDataName = "classes-"

// marker describes a complete folder: what it was made of and how much there must be of it.
func marker(home string, a Artifact) (string, error) {
	files, bytes := 0, int64(0)
	err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(home, path)
		if d.IsDir() && rel == "logs" { // written by the distribution's own tools
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() || rel == markerName || strings.HasPrefix(rel, ClassDataName) {
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
	return fmt.Sprintf("%s %d files %d bytes\n", a.Sha512, files, bytes), err
}

func mark(home string, a Artifact) error {
	text, err := marker(home, a)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(home, markerName), []byte(text), 0o644)
}

func intact(home string, a Artifact) bool {
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

// listing is what sha512sum prints of a folder's files in the order of their names: `LC_ALL=C
// sha512sum * | sha512sum` makes the digest of a new version.
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
	free, err := Free(dir)
	if err == nil && free < need {
		err = fmt.Errorf("not enough disk for the download: %s has %d MB free, %d MB are needed; free some, or move the cache with XDG_CACHE_HOME", dir, free/1e6, need/1e6)
	}
	return err
}

// Free returns how many bytes the file system of a folder has free for who runs this.
func Free(dir string) (int64, error) {
	var st unix.Statfs_t
	err := unix.Statfs(dir, &st)
	return int64(st.Bavail) * st.Bsize, err
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
