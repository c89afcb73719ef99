package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// Folder returns a folder of the cache that fill has filled, once for each content of the file
// wanted, which says what is in it, and each version of the program that makes it: maker is the
// command that prints that version, such as python3 --version. It is safe for concurrent use, by
// other processes too. A fill that fails leaves nothing.
func (i Installer) Folder(ctx context.Context, name, wanted string, maker []string, fill func(ctx context.Context, dir string) error) (string, error) {
	key, err := folderKey(ctx, wanted, maker)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(i.Cache, name+"-"+key)
	unlock, err := process.Lock(ctx, dir+".lock", i.Log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	i.Log.Printf("installing %s", name)
	work := dir + unfinished
	if err := os.RemoveAll(work); err != nil {
		return "", err
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return "", err
	}
	if err := fill(ctx, work); err != nil {
		return "", errors.Join(err, os.RemoveAll(work))
	}
	return dir, os.Rename(work, dir)
}

// unfinished ends the name of a folder that is being filled, under the lock of the folder that it
// will be.
const unfinished = ".work"

// Sweep deletes unfinished folders that no process fills any more: who did was killed. Failing to is
// harmless: the next one tries again.
func (i Installer) Sweep() {
	for _, pattern := range []string{"*", "*/*"} {
		dirs, _ := filepath.Glob(filepath.Join(i.Cache, pattern) + unfinished)
		for _, dir := range dirs {
			if unlock, ok := process.TryLock(strings.TrimSuffix(dir, unfinished) + ".lock"); ok {
				_ = os.RemoveAll(dir)
				unlock()
			}
		}
	}
}

// folderKey tells apart contents of the file wanted, and versions and paths of the maker: a virtual
// environment of Python, for one, has links to the interpreter.
func folderKey(ctx context.Context, wanted string, maker []string) (string, error) {
	text, err := os.ReadFile(wanted)
	if err != nil {
		return "", err
	}
	path, err := exec.LookPath(maker[0])
	if err != nil {
		return "", err
	}
	version, err := exec.CommandContext(ctx, path, maker[1:]...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("cannot tell the version of %s: %w: %s", path, err, process.FirstLine(string(version)))
	}
	h := sha256.New()
	fmt.Fprintf(h, "%d\n%s%s\n%s", len(text), text, path, version)
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// Jars returns a folder with artifacts of the Maven repository, coordinates with spaces between
// them, and everything they need at run time. It fetches them if the cache does not hold them
// whole. sha512 is the sum of the sums of the jars, as `LC_ALL=C sha512sum * | sha512sum` prints
// it.
func (i Installer) Jars(ctx context.Context, name, coordinates, sha512 string) (string, error) {
	a := Artifact{Coordinates: coordinates, File: name, Folder: name, Sha512: sha512, Size: 10e6}
	return i.Distribution(ctx, a, MavenJars)
}
