package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// Folder returns a folder of the cache that fill has filled, once for each content of the file
// wanted, which says what is in it. It is safe for concurrent use, by other processes too. A fill
// that fails leaves nothing.
func (i Installer) Folder(ctx context.Context, name, wanted string, fill func(ctx context.Context, dir string) error) (string, error) {
	text, err := os.ReadFile(wanted)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	dir := filepath.Join(i.Cache, name+"-"+hex.EncodeToString(sum[:6]))
	unlock, err := process.Lock(ctx, dir+".lock", i.Log)
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	i.Log.Printf("installing %s", name)
	work := dir + ".work"
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

// Jars returns a folder with artifacts of the Maven repository, coordinates with spaces between
// them, and everything they need at run time. It fetches them if the cache does not hold them
// whole. sha512 is the sum of the sums of the jars, as `LC_ALL=C sha512sum * | sha512sum` prints
// it.
func (i Installer) Jars(ctx context.Context, name, coordinates, sha512 string) (string, error) {
	a := Artifact{Coordinates: coordinates, File: name, Folder: name, Sha512: sha512, Size: 10e6}
	return i.Distribution(ctx, a, MavenJars)
}
