package install

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Download is something that a service needs and this machine does not have yet.
type Download struct {
	What string
	Size int64  // of what is fetched, in bytes, about
	To   string // where it is then, in words
}

func (d Download) String() string {
	return fmt.Sprintf("%s, %d MB, to %s", d.What, d.Megabytes(), d.To)
}

// Megabytes is the size, rounded up.
func (d Download) Megabytes() int64 { return (d.Size + 1e6 - 1) / 1e6 }

// MissingFunc is the function missing of a service.
type MissingFunc func(ctx context.Context) ([]Download, error)

// Missing is for a service that needs a distribution.
func (i Installer) Missing(name string, a Artifact) MissingFunc {
	return func(context.Context) ([]Download, error) {
		if intact(filepath.Join(i.Cache, "servers", a.Folder), a) || a.inLocalRepository() {
			return nil, nil
		}
		to := "Maven's local repository and " + filepath.Join(i.Cache, "servers")
		return []Download{{What: name + " from the Maven repository", Size: a.Size, To: to}}, nil
	}
}

// inLocalRepository reports whether the user's local Maven repository has the artifact. One
// elsewhere is not looked for.
func (a Artifact) inLocalRepository() bool {
	home, err := os.UserHomeDir()
	if err != nil {
		return false
	}
	for coordinates := range strings.FieldsSeq(a.Coordinates) {
		parts := strings.Split(coordinates, ":") // group, artifact, version, and perhaps type and classifier
		kind := ".jar"
		if len(parts) > 3 {
			kind = "." + parts[3]
		}
		folder := filepath.Join(append(append([]string{home, ".m2", "repository"}, strings.Split(parts[0], ".")...), parts[1:3]...)...)
		if found, _ := filepath.Glob(filepath.Join(folder, "*"+kind)); len(found) == 0 {
			return false
		}
	}
	return true
}

// MissingPackage is for a service that needs a Debian package; size is that of the package and what
// it depends on, as apt-get fetches it.
func MissingPackage(pkg string, size int64, here func() error) MissingFunc {
	return func(context.Context) ([]Download, error) {
		if here() == nil {
			return nil, nil
		}
		return []Download{{What: "the Debian package " + pkg, Size: size, To: "this system, with apt-get"}}, nil
	}
}

// Programs returns a function that fails unless all of them are there.
func Programs(paths ...string) func() error {
	return func() error {
		for _, path := range paths {
			if _, err := exec.LookPath(path); err != nil {
				return err
			}
		}
		return nil
	}
}
